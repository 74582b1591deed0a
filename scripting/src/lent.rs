//! The exchange for which code runs now.
//!
//! Functions that scripts and modules call live as long as their machine, an exchange as long as one call of its plugin.
//! While code of an exchange runs, the exchange is in a place of its thread, from which functions borrow it.

use scoped_tls_hkt::scoped_thread_local;
use sdk::Exchange;

/// An exchange of any lifetime.
trait Borrowed {
    fn lend(&mut self, to: &mut dyn FnMut(&mut Exchange<'_>));
}

impl Borrowed for Exchange<'_> {
    fn lend(&mut self, to: &mut dyn FnMut(&mut Exchange<'_>)) {
        to(self);
    }
}

scoped_thread_local!(static mut EXCHANGE: for<'a> &'a mut (dyn Borrowed + 'a));

/// Runs code that may borrow an exchange.
pub(crate) fn lend<T>(x: &mut Exchange<'_>, code: impl FnOnce() -> T) -> T {
    EXCHANGE.set(x, code)
}

/// Borrows the exchange; `None` without an exchange. No code of scripts or modules may be called meanwhile.
pub(crate) fn with<T>(f: impl FnOnce(&mut Exchange<'_>) -> T) -> Option<T> {
    if !EXCHANGE.is_set() {
        return None;
    }
    let (mut f, mut result) = (Some(f), None);
    EXCHANGE.with(|x| {
        x.lend(&mut |x| {
            if let Some(f) = f.take() {
                result = Some(f(x));
            }
        });
    });
    result
}
