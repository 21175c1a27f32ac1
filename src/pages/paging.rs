//! Paging of long tables: which rows are shown, and the links to the other pages.

use super::format;

/// Rows per page: few enough for a person to scroll through, and for at most a tenth of a second of rendering.
pub(crate) const PAGE_ROWS: usize = 100;

/// The position of a page in its table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paging {
    /// Number of rows of the table.
    pub total: usize,
    /// Index of the first row shown, from 0.
    pub from: usize,
    /// Index after the last row shown.
    pub to: usize,
    /// Number of the page, from 1.
    pub page: usize,
    /// Number of pages, at least 1.
    pub pages: usize,
    link: String,
}

impl Paging {
    /// The requested page, or the last one if there are fewer. `link`: path and query, to which `page=` is added.
    pub(crate) fn new(total: usize, page: usize, link: String) -> Self {
        let pages = total.div_ceil(PAGE_ROWS).max(1);
        let page = page.clamp(1, pages);
        let from = (page - 1) * PAGE_ROWS;
        Self { total, from, to: (from + PAGE_ROWS).min(total), page, pages, link }
    }

    /// The range as text: `1 to 100 of 4 711`.
    pub(crate) fn range_text(&self) -> String {
        let n = |n: usize| format::number(n);
        match self.total {
            0 => "none".to_owned(),
            _ if self.pages == 1 => format!("all {}", n(self.total)),
            _ => format!("{} to {} of {}", n(self.from + 1), n(self.to), n(self.total)),
        }
    }

    fn link_to(&self, page: usize) -> String {
        let separator = if self.link.contains('?') { '&' } else { '?' };
        format!("{}{separator}page={page}", self.link)
    }

    /// Link to the previous page.
    pub(crate) fn previous(&self) -> Option<String> {
        (self.page > 1).then(|| self.link_to(self.page - 1))
    }

    /// Link to the next page.
    pub(crate) fn next(&self) -> Option<String> {
        (self.page < self.pages).then(|| self.link_to(self.page + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_clamped_and_linked() {
        let page = Paging::new(250, 9, "/ui/?sort=held".into());
        assert_eq!((page.page, page.pages, page.from, page.to), (3, 3, 200, 250));
        assert_eq!((page.previous().as_deref(), page.next()), (Some("/ui/?sort=held&page=2"), None));
        assert_eq!(page.range_text(), "201 to 250 of 250");
        let first = Paging::new(101, 0, "/ui/".into());
        assert_eq!((first.next().as_deref(), first.previous()), (Some("/ui/?page=2"), None));
        let none = Paging::new(0, 1, "/ui/".into());
        assert_eq!((none.from, none.to, none.range_text().as_str()), (0, 0, "none"));
        assert_eq!(Paging::new(7, 1, String::new()).range_text(), "all 7");
    }
}
