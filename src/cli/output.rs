//! Writing for people: one line at a time, on whatever the caller was given. Where the other side
//! has gone away there is nobody to tell, so nothing here can fail.

use std::cell::RefCell;
use std::io::Write;

/// Writes a line.
pub(super) fn say(to: &mut dyn Write, line: &str) {
    let _ = writeln!(to, "{line}");
}

/// Standard error for several speakers at once: the loop that watches and what it awaits.
pub(super) struct Voice<'a>(RefCell<&'a mut dyn Write>);

impl<'a> Voice<'a> {
    pub(super) fn new(to: &'a mut dyn Write) -> Self {
        Self(RefCell::new(to))
    }

    /// A message: one line that begins with the program's name.
    pub(super) fn say(&self, message: &str) {
        say(*self.0.borrow_mut(), &format!("redlockd: {message}"));
    }

    /// Text as it is, and at once: for a line that is written over.
    pub(super) fn raw(&self, text: &str) {
        let mut to = self.0.borrow_mut();
        let _ = write!(to, "{text}").and_then(|()| to.flush());
    }
}
