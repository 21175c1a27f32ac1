//! Query strings of pages as filters of views. Empty fields count as absent, since a form sends all of its fields;
//! unknown fields are refused, as everywhere.

use axum::http::Uri;

use crate::http::api::event_filter::EventFilter;
use crate::http::api::request_fields::Fields;
use crate::http::problem::Problem;
use crate::pages::table_query::{Table, TableQuery};
use crate::pages::timeline::{PERIODS, TimelineQuery};
use crate::pages::{events, locks};
use crate::types::{Invalid, TokenId};

/// The maximum page number: more than any table has.
const PAGE_MAX: usize = 1_000_000;

fn page(fields: &mut Fields) -> usize {
    let page = fields.text("page").unwrap_or_default();
    page.parse().unwrap_or(1).clamp(1, PAGE_MAX)
}

/// The value with this name in `known`; an unknown one is an error, an empty one `None`.
fn choice<T: Copy>(fields: &mut Fields, name: &str, known: &[(T, &'static str)]) -> Option<T> {
    let word = fields.text(name).filter(|word| !word.is_empty())?;
    let found = known.iter().find(|(_, known)| *known == word).map(|(value, _)| *value);
    if found.is_none() {
        let words = known.iter().map(|(_, word)| *word).collect::<Vec<_>>().join(", ");
        fields.wrong(name, format!("must be one of {words}"));
    }
    found
}

/// The filter of the list of locks. Errors: `invalid`.
pub(super) fn locks(uri: &Uri) -> Result<locks::LocksQuery, Problem> {
    let mut fields = Fields::of_query(uri)?;
    let sort = choice(&mut fields, "sort", &locks::Sort::ALL);
    let states = locks::ListedState::ALL.map(|(state, word, _)| (state, word));
    let query = locks::LocksQuery {
        prefix: fields.text("prefix").unwrap_or_default().trim().to_owned(),
        owner: fields.text("owner").unwrap_or_default(),
        find: fields.text("find").unwrap_or_default().trim().to_owned(),
        state: choice(&mut fields, "state", &states),
        sort: sort.unwrap_or_default(),
        descending: choice(&mut fields, "dir", &[(true, "desc"), (false, "asc")]).unwrap_or(sort.is_none()),
        page: page(&mut fields),
    };
    fields.finish(&["prefix", "owner", "find", "state", "sort", "dir", "page"])?;
    Ok(query)
}

/// The query of the timeline. Errors: `invalid`.
pub(super) fn timeline(uri: &Uri) -> Result<TimelineQuery, Problem> {
    let mut fields = Fields::of_query(uri)?;
    let prefix = fields.text("prefix").unwrap_or_default().trim().to_owned();
    let period = choice(&mut fields, "last", &PERIODS).unwrap_or(PERIODS[0].0);
    fields.finish(&["prefix", "last"])?;
    Ok(TimelineQuery { prefix, period })
}

/// The filter of the events, and its fields as entered. Units: milliseconds since 1970. Errors: `invalid`.
pub(super) fn events(uri: &Uri, now_ms: u64) -> Result<(EventFilter, events::EventsQuery), Problem> {
    let mut entered = Fields::of_query(uri)?;
    let mut text = |name: &str| entered.text(name).unwrap_or_default().trim().to_owned();
    let [kind, prefix, at, from, to] = ["kind", "prefix", "at", "from", "to"].map(&mut text);
    let mut fields = Fields::of_query(uri)?;
    let filter = EventFilter::read(&mut fields, now_ms);
    let query = events::EventsQuery { kind, prefix, at, from, to, page: page(&mut fields) };
    fields.finish(&[&EventFilter::FIELDS[..], &["page"]].concat())?;
    Ok((filter, query))
}

/// The query of a table. Errors: `invalid`.
pub(super) fn table(uri: &Uri, table: Table) -> Result<TableQuery, Problem> {
    let mut fields = Fields::of_query(uri)?;
    let columns: Vec<_> = table.columns.iter().map(|column| (*column, column.name)).collect();
    let find = fields.text("find").unwrap_or_default().trim().to_owned();
    let mut query = TableQuery::of(table);
    query.find = find;
    if let Some(column) = choice(&mut fields, "sort", &columns) {
        (query.sort, query.descending) = (column.name, column.descends_first);
    }
    query.descending = choice(&mut fields, "dir", &[(true, "desc"), (false, "asc")]).unwrap_or(query.descending);
    query.page = page(&mut fields);
    fields.finish(&["find", "sort", "dir", "page"])?;
    Ok(query)
}

/// Refuses any field. Errors: `invalid`.
pub(super) fn nothing(uri: &Uri) -> Result<(), Problem> {
    Fields::of_query(uri)?.finish(&[])
}

/// The selected one of several leases. Errors: `invalid`.
pub(super) fn lease(uri: &Uri) -> Result<Option<TokenId>, Problem> {
    let mut fields = Fields::of_query(uri)?;
    let text = fields.text("lease").filter(|text| !text.is_empty());
    let lease = text.and_then(|text| {
        let lease = TokenId::parse(&text).ok_or_else(|| Invalid("is not the id of a lease".to_owned()));
        fields.check("lease", lease)
    });
    fields.finish(&["lease"])?;
    Ok(lease)
}

/// A single optional field with one of these values. Errors: `invalid`.
pub(super) fn word(uri: &Uri, name: &str, known: &[&'static str]) -> Result<&'static str, Problem> {
    let mut fields = Fields::of_query(uri)?;
    let known: Vec<_> = known.iter().map(|word| (*word, *word)).collect();
    let word = choice(&mut fields, name, &known).unwrap_or_default();
    fields.finish(&[name])?;
    Ok(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::table_query::WAITERS;

    fn uri(text: &str) -> Uri {
        text.parse().expect("a URI")
    }

    #[test]
    fn a_form_with_empty_fields_does_not_filter() {
        assert_eq!(
            locks(&uri("/ui/?find=&prefix=&owner=&state=&sort=&dir=&page=")).expect("read"),
            locks::LocksQuery::default()
        );
        let query =
            locks(&uri("/ui/?prefix=deploy/&owner=ci+1&state=lock-delay&sort=held&dir=desc&page=3")).expect("read");
        assert_eq!((query.prefix.as_str(), query.owner.as_str(), query.page), ("deploy/", "ci 1", 3));
        assert_eq!(
            (query.state, query.sort, query.descending),
            (Some(locks::ListedState::LockDelay), locks::Sort::Held, true)
        );
        let by_name = locks(&uri("/ui/?sort=resource")).expect("read");
        assert!(!by_name.descending, "only the order that is not asked for is a descending one");
        let last = timeline(&uri("/ui/timeline?prefix=deploy/&last=15m")).expect("read");
        assert_eq!((last.prefix.as_str(), last.period.text().as_str()), ("deploy/", "15 m 00 s"));
        assert!(timeline(&uri("/ui/timeline?last=2y")).is_err());
        let waiters = |text: &str| table(&uri(text), WAITERS).expect("read");
        assert_eq!(waiters("/ui/waiters?find=&sort=&dir=&page=99999999999999999999"), TableQuery::of(WAITERS));
        let last = waiters("/ui/waiters?find=ci&sort=left&dir=desc&page=2");
        assert_eq!((last.find.as_str(), last.sort, last.descending, last.page), ("ci", "left", true, 2));
        assert!(!waiters("/ui/waiters?sort=left").descending && waiters("/ui/waiters?sort=waiting").descending);
        assert!(table(&uri("/ui/waiters?sort=expires"), WAITERS).is_err());
    }

    #[test]
    fn unknown_values_and_fields_are_refused() {
        for wrong in ["/ui/?state=gone", "/ui/?sort=colour", "/ui/?dir=up", "/ui/?preifx=a", "/ui/?prefix=a&prefix=b"] {
            assert!(locks(&uri(wrong)).is_err(), "{wrong}");
        }
        assert!(events(&uri("/ui/events?kind=own3d"), 0).is_err() && events(&uri("/ui/events?at=noon"), 0).is_err());
        assert_eq!(word(&uri("/x?done=revoked"), "done", &["revoked"]).expect("read"), "revoked");
        assert!(word(&uri("/x?done=evil"), "done", &["revoked"]).is_err());
    }
}
