//! Variables that scripts set: `ctx.var.NAME = value`.

use crate::exchange::Exchange;

/// The variables of an exchange that scripts have set, a note of it. They are read where no other variable has the name.
#[derive(Debug, Default)]
pub(super) struct SetVars {
    all: Vec<(Box<str>, Vec<u8>)>,
    bytes: usize,
}

/// Variables of one exchange, at most, and the bytes of their names and values.
const MOST: usize = 100;
const LONGEST: usize = 64 << 10;

impl SetVars {
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.all.iter().find(|(own, _)| **own == *name).map(|(_, value)| &value[..])
    }
}

/// Sets the variable of this name for plugins, conditions and logs of the exchange, or removes it. Returns false if
/// there is no room for it.
pub fn set(x: &mut Exchange<'_>, name: &str, value: Option<&[u8]>) -> bool {
    if value.is_none() && x.note::<SetVars>().is_none() {
        return true;
    }
    let vars: &mut SetVars = x.note_or_default();
    if let Some(at) = vars.all.iter().position(|(own, _)| **own == *name) {
        let (name, value) = vars.all.swap_remove(at);
        vars.bytes -= name.len() + value.len();
    }
    let Some(value) = value else { return true };
    let bytes = vars.bytes + name.len() + value.len();
    if vars.all.len() == MOST || bytes > LONGEST {
        return false;
    }
    vars.bytes = bytes;
    vars.all.push((name.into(), value.into()));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Probe;
    use crate::vars::Var;

    #[test]
    fn set_variables_are_read_and_bounded() {
        let mut probe = Probe::default();
        let mut x = probe.exchange();
        assert!(set(&mut x, "mine", None) && Var::parse("mine").of(&x).is_none());
        assert!(set(&mut x, "mine", Some(b"a")) && set(&mut x, "mine", Some(b"b")));
        assert_eq!(Var::parse("mine").of(&x).as_deref(), Some(&b"b"[..]));
        assert!(set(&mut x, "uri", Some(b"/mine")));
        let uri = Var::parse("uri").of(&x).map(|uri| uri.into_owned());
        assert_ne!(uri.as_deref(), Some(&b"/mine"[..]), "the gateway's own variables stay");
        assert!(set(&mut x, "mine", None) && Var::parse("mine").of(&x).is_none());
        assert!(!set(&mut x, "long", Some(&[b'a'; LONGEST])));
        let room = (0..MOST).filter(|n| set(&mut x, &format!("v{n}"), Some(b"a"))).count();
        assert_eq!(room, MOST - 1);
        assert!(set(&mut x, "v1", Some(b"b")) && !set(&mut x, "more", Some(b"a")));
    }
}
