//! Changes of a request that has ended, for the logs: entries and lines that are written later show the masked text.

use std::rc::Rc;

use super::Exchange;

impl Exchange<'_> {
    /// Replaces the query in every variable, `$request` and `$request_uri` included. An empty query removes it. Call
    /// it in the log phase.
    pub fn mask_query(&mut self, query: &[u8]) {
        let head = self.request();
        let target = head.target();
        let mut masked =
            target[..target.iter().position(|&byte| byte == b'?').unwrap_or(target.len())].to_vec();
        if !query.is_empty() {
            masked.push(b'?');
            masked.extend_from_slice(query);
        }
        self.engine.messages.request.target_span = self.intern(&masked);
        self.set_query(query);
    }

    /// Replaces the part of the request's body that is buffered; an empty text removes it. It counts against
    /// [`World::budget`](crate::World::budget), and is empty if that is used up. Call it in the log phase.
    pub fn mask_body(&mut self, body: Vec<u8>) {
        let messages = &mut *self.engine.messages;
        let has_room = messages.body_held.resize(self.engine.world.budget(), body.capacity()).is_ok();
        messages.body = Rc::new(if has_room { body } else { Vec::new() });
    }
}

#[cfg(test)]
mod tests {
    use crate::exchange::Body;
    use crate::testing::{Probe, with_body};
    use crate::vars::Var;

    #[test]
    fn a_masked_query_is_in_all_variables() {
        let mut probe = Probe::get("/a?b=secret&c=d");
        let mut x = probe.exchange();
        x.mask_query(b"b=*");
        let text = |x: &crate::Exchange<'_>, name: &str| {
            String::from_utf8(Var::parse(name).of(x).unwrap_or_default().into_owned()).unwrap()
        };
        for (name, value) in [
            ("request", "GET /a?b=* HTTP/1.1"),
            ("request_uri", "/a?b=*"),
            ("real_request_uri", "/a?b=*"),
            ("query_string", "b=*"),
            ("arg_b", "*"),
            ("arg_c", ""),
            ("uri", "/a"),
        ] {
            assert_eq!(text(&x, name), value, "{name}");
        }
        x.mask_query(b"");
        assert_eq!((text(&x, "request"), text(&x, "request_uri")), ("GET /a HTTP/1.1".into(), "/a".into()));
    }

    #[test]
    fn a_masked_body_counts_against_the_budget() {
        let mut probe = Probe::request("POST", "/", &[("Host", "a"), ("Content-Length", "3")]);
        probe.world.budget = crate::budget::Budget::new(100);
        let budget = probe.world.budget.clone();
        let mut x = probe.exchange();
        with_body(&mut x, b"a=1");
        x.mask_body(b"a=*".to_vec());
        assert_eq!((x.body(), x.header("Content-Length"), budget.taken()), (&b"a=*"[..], Some(&b"3"[..]), 3));
        x.mask_body(vec![0; 101]);
        assert_eq!((x.body(), x.body_prefix(), x.body_state()), (&b""[..], &b""[..], Body::Whole));
    }
}
