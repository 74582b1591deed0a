//! Cookies of a request.

use wire::Name;

use crate::exchange::Exchange;
use crate::vars::read;

impl Exchange<'_> {
    /// The value of a cookie (`$cookie_name`); the last one of several with the same name.
    pub fn cookie(&self, name: &str) -> Option<&[u8]> {
        read::cookie(&self.request().fields, name.as_bytes())
    }

    /// Removes all cookies of this name for later plugins and the upstream. Others are kept.
    pub fn remove_cookie(&mut self, name: &str) {
        let fields = &mut self.engine_mut().messages.request.fields;
        let is_named = |pair: &[u8]| {
            pair.trim_ascii_start().strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
        };
        let mut kept = Vec::new();
        for field in fields.list().iter().filter(|field| field.id == Name::Cookie) {
            let pairs = fields.bytes(field.value).split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
            for pair in pairs.filter(|pair| !pair.is_empty() && !is_named(pair)) {
                if !kept.is_empty() {
                    kept.extend_from_slice(b"; ");
                }
                kept.extend_from_slice(pair);
            }
        }
        fields.remove_id(Name::Cookie);
        if !kept.is_empty() {
            // Parts of valid values are valid.
            let _ = fields.set_id(Name::Cookie, &kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Probe;

    #[test]
    fn removing_a_cookie_keeps_the_others() {
        let cookies = [("Cookie", "a=1; jwt=x.y; jwt2=z;b"), ("Cookie", " jwt=again ;c=\"3\"")];
        let mut probe = Probe::request("GET", "/", &cookies);
        let mut x = probe.exchange();
        assert_eq!(x.cookie("jwt"), Some(&b"again"[..]));
        x.remove_cookie("jwt");
        assert_eq!(x.cookie("jwt"), None);
        assert_eq!(x.header("Cookie"), Some(&b"a=1; jwt2=z; b; c=\"3\""[..]));
        for name in ["a", "jwt2", "c", "none"] {
            x.remove_cookie(name);
        }
        assert_eq!(x.header("Cookie"), Some(&b"b"[..]));
        let mut probe = Probe::request("GET", "/", &[("Cookie", "jwt=x")]);
        let mut x = probe.exchange();
        x.remove_cookie("jwt");
        assert_eq!(x.header("Cookie"), None);
    }
}
