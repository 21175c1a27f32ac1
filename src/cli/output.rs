//! Writes lines for people. Errors are ignored: nobody reads a closed output.

use std::cell::RefCell;
use std::io::Write;

/// Writes a line, and ignores a closed output.
pub(super) fn print_line(to: &mut dyn Write, line: &str) {
    let _ = writeln!(to, "{line}");
}

/// Standard error, shared by the supervising code and the futures that it polls.
pub(super) struct MessageWriter<'a>(RefCell<&'a mut dyn Write>);

impl<'a> MessageWriter<'a> {
    pub(super) fn new(to: &'a mut dyn Write) -> Self {
        Self(RefCell::new(to))
    }

    /// Prints one line that begins with the program's name.
    pub(super) fn message(&self, message: &str) {
        print_line(*self.0.borrow_mut(), &format!("redlockd: {message}"));
    }

    /// Prints the text unchanged and flushes, for a progress line that is overwritten.
    pub(super) fn text(&self, text: &str) {
        let mut to = self.0.borrow_mut();
        let _ = write!(to, "{text}").and_then(|()| to.flush());
    }
}
