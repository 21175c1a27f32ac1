//! Long tables in pages: which part is shown, and the links to the others. Knows no table.

use super::format;

/// Rows of one page: what a person scrolls through, and a tenth of a second of rendering at most.
pub const PAGE_ROWS: usize = 100;

/// Where a page lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paging {
    /// Rows in all.
    pub total: usize,
    /// The first row that is shown, from 0.
    pub from: usize,
    /// Behind the last one.
    pub to: usize,
    /// This page, from 1.
    pub page: usize,
    /// All pages; at least 1.
    pub pages: usize,
    link: String,
}

impl Paging {
    /// The page that was asked for, or the last one where there are fewer. `link`: the page's own
    /// address with its query, to which `page=` is added.
    pub fn new(total: usize, page: usize, link: String) -> Self {
        let pages = total.div_ceil(PAGE_ROWS).max(1);
        let page = page.clamp(1, pages);
        let from = (page - 1) * PAGE_ROWS;
        Self { total, from, to: (from + PAGE_ROWS).min(total), page, pages, link }
    }

    /// `1 to 100 of 4 711`.
    pub fn words(&self) -> String {
        let n = |n: usize| format::number(n);
        match self.total {
            0 => "none".to_owned(),
            _ if self.pages == 1 => format!("all {}", n(self.total)),
            _ => format!("{} to {} of {}", n(self.from + 1), n(self.to), n(self.total)),
        }
    }

    fn at(&self, page: usize) -> String {
        let joint = if self.link.contains('?') { '&' } else { '?' };
        format!("{}{joint}page={page}", self.link)
    }

    /// Where the page before is.
    pub fn before(&self) -> Option<String> {
        (self.page > 1).then(|| self.at(self.page - 1))
    }

    /// Where the next page is.
    pub fn next(&self) -> Option<String> {
        (self.page < self.pages).then(|| self.at(self.page + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_clamped_and_linked() {
        let page = Paging::new(250, 9, "/ui/?sort=held".into());
        assert_eq!((page.page, page.pages, page.from, page.to), (3, 3, 200, 250));
        assert_eq!((page.before().as_deref(), page.next()), (Some("/ui/?sort=held&page=2"), None));
        assert_eq!(page.words(), "201 to 250 of 250");
        let first = Paging::new(101, 0, "/ui/".into());
        assert_eq!((first.next().as_deref(), first.before()), (Some("/ui/?page=2"), None));
        let none = Paging::new(0, 1, "/ui/".into());
        assert_eq!((none.from, none.to, none.words().as_str()), (0, 0, "none"));
        assert_eq!(Paging::new(7, 1, String::new()).words(), "all 7");
    }
}
