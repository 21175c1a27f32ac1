//! Style sheet, script and icon, included in the binary. Each is served under a name that contains its hash, so
//! that browsers may cache it without limit.

use std::sync::LazyLock;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

#[derive(Debug)]
pub(crate) struct Asset {
    /// File name with the hash, as used in URLs.
    pub name: String,
    pub media_type: &'static str,
    pub bytes: &'static [u8],
}

/// The static files of all pages.
#[derive(Debug)]
pub(crate) struct Assets {
    pub style: Asset,
    /// The script that refreshes pages.
    pub live: Asset,
    /// The script that goes to a lock, an owner or a page.
    pub palette: Asset,
    pub icon: Asset,
}

static ASSETS: LazyLock<Assets> = LazyLock::new(|| Assets {
    style: asset("style", "css", "text/css; charset=utf-8", include_bytes!("../../static/style.css")),
    live: asset("live", "js", "text/javascript; charset=utf-8", include_bytes!("../../static/live.js")),
    palette: asset("palette", "js", "text/javascript; charset=utf-8", include_bytes!("../../static/palette.js")),
    icon: asset("icon", "svg", "image/svg+xml", include_bytes!("../../static/icon.svg")),
});

fn asset(stem: &str, extension: &str, media_type: &'static str, bytes: &'static [u8]) -> Asset {
    let hash = HEXLOWER.encode(&Sha256::digest(bytes)[..8]);
    Asset { name: format!("{stem}-{hash}.{extension}"), media_type, bytes }
}

/// All static files.
pub(crate) fn all() -> &'static Assets {
    &ASSETS
}

/// The file with this name, including the hash.
pub(crate) fn find(name: &str) -> Option<&'static Asset> {
    [&ASSETS.style, &ASSETS.live, &ASSETS.palette, &ASSETS.icon].into_iter().find(|asset| asset.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_change_with_the_content() {
        let name = |bytes| asset("style", "css", "text/css", bytes).name;
        assert_ne!(name(b"a"), name(b"b"));
        assert_eq!(name(b"a").len(), "style-".len() + 16 + ".css".len());
        assert_eq!(find(&all().live.name).map(|a| a.media_type), Some("text/javascript; charset=utf-8"));
        assert!(find("style.css").is_none());
    }
}
