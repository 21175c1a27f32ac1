//! Style, script and icon, carried by the program. Each is served under a name that has its hash in
//! it, so that browsers may keep it for ever. Knows no request.

use std::sync::LazyLock;

use sha2::{Digest, Sha256};

/// One file.
#[derive(Debug)]
pub struct Asset {
    /// The name with its hash, as it stands in URLs.
    pub name: String,
    /// Its media type.
    pub kind: &'static str,
    /// What it is.
    pub bytes: &'static [u8],
}

/// The files that pages need.
#[derive(Debug)]
pub struct Assets {
    /// The style sheet.
    pub style: Asset,
    /// What keeps pages fresh.
    pub live: Asset,
    /// The icon.
    pub icon: Asset,
}

static ASSETS: LazyLock<Assets> = LazyLock::new(|| Assets {
    style: asset("style", "css", "text/css; charset=utf-8", include_bytes!("../../static/style.css")),
    live: asset("live", "js", "text/javascript; charset=utf-8", include_bytes!("../../static/live.js")),
    icon: asset("icon", "svg", "image/svg+xml", include_bytes!("../../static/icon.svg")),
});

fn asset(stem: &str, extension: &str, kind: &'static str, bytes: &'static [u8]) -> Asset {
    let hash: String = Sha256::digest(bytes).iter().take(8).map(|b| format!("{b:02x}")).collect();
    Asset { name: format!("{stem}-{hash}.{extension}"), kind, bytes }
}

/// All of them.
pub fn all() -> &'static Assets {
    &ASSETS
}

/// The one of this name.
pub fn find(name: &str) -> Option<&'static Asset> {
    [&ASSETS.style, &ASSETS.live, &ASSETS.icon].into_iter().find(|asset| asset.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_change_with_what_they_name() {
        let name = |bytes| asset("style", "css", "text/css", bytes).name;
        assert_ne!(name(b"a"), name(b"b"));
        assert_eq!(name(b"a").len(), "style-".len() + 16 + ".css".len());
        assert_eq!(find(&all().live.name).map(|a| a.kind), Some("text/javascript; charset=utf-8"));
        assert!(find("style.css").is_none());
    }
}
