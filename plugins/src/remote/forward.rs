//! HTTP proxies between the gateway and servers, with settings as `proxy_opts` of APISIX 3.18 (lua-resty-http).

use indexmap::IndexMap;
use model::Invalid;
use sdk::Fields;
use sdk::build::split_authority;
use serde_json::Value;

/// The proxies for servers without and with TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Forward {
    plain: Option<Proxy>,
    tls: Option<Proxy>,
    /// Hosts, in lower case, that no proxy is between, with all under them if they have a dot; `*` alone are all.
    direct: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub host: String,
    pub port: u16,
    /// The value of `Proxy-Authorization`.
    pub authorization: Option<String>,
}

impl Forward {
    /// # Errors
    /// An address or a credential that cannot be used, with its pointer.
    pub fn parse(options: &IndexMap<String, Value>) -> Result<Forward, Invalid> {
        let text = |name: &str| options.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let proxy = |name: &str| {
            let Some(url) = text(name) else { return Ok(None) };
            // It may have a password, so it is not shown.
            let invalid = || {
                let invalid = Invalid::new("the address of the proxy is invalid");
                invalid.at(format!("/{name}")).expected("http://host[:port]")
            };
            let rest = url.strip_prefix("http://").ok_or_else(invalid)?;
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
            let (host, port) = split_authority(rest.strip_suffix('/').unwrap_or(rest), 80)
                .filter(|(host, _)| host.bytes().all(is_name))
                .ok_or_else(invalid)?;
            let name = format!("{name}_authorization");
            let authorization = text(&name).map(str::to_owned);
            if authorization
                .as_ref()
                .is_some_and(|value| Fields::new().set(b"Proxy-Authorization", value.as_bytes()).is_err())
            {
                return Err(Invalid::new("this cannot stand in a header").at(format!("/{name}")));
            }
            Ok(Some(Proxy { host: host.to_owned(), port, authorization }))
        };
        let direct = text("no_proxy").unwrap_or_default().split(',');
        let direct = direct.map(|host| host.trim().trim_start_matches('.').to_ascii_lowercase());
        Ok(Forward {
            plain: proxy("http_proxy")?,
            tls: proxy("https_proxy")?,
            direct: direct.filter(|host| !host.is_empty()).collect(),
        })
    }

    /// The proxy to a server.
    pub fn to(&self, host: &str, tls: bool) -> Option<&Proxy> {
        let proxy = if tls { &self.tls } else { &self.plain };
        let host = host.to_ascii_lowercase();
        let is_all = matches!(&self.direct[..], [all] if all == "*");
        let is_direct = |own: &String| match host.strip_suffix(own.as_str()) {
            Some("") => true,
            Some(rest) => rest.ends_with('.') && own.contains('.'),
            None => false,
        };
        proxy.as_ref().filter(|_| !is_all && !self.direct.iter().any(is_direct))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(options: Value) -> Result<Forward, Invalid> {
        Forward::parse(&serde_json::from_value(options).unwrap())
    }

    #[test]
    fn servers_have_the_proxy_of_their_scheme_unless_they_are_excepted() {
        let options = json!({"http_proxy": "http://p.test:3128", "https_proxy": "http://[::1]/", "https_proxy_authorization": "Basic x", "no_proxy": "a.test, .b.test,10.0.0.1"});
        let forward = parsed(options).unwrap();
        let to = |host: &str, tls| {
            forward.to(host, tls).map(|proxy| (&*proxy.host, proxy.port, proxy.authorization.as_deref()))
        };
        assert_eq!(to("idp.test", false), Some(("p.test", 3128, None)));
        assert_eq!(to("idp.test", true), Some(("::1", 80, Some("Basic x"))));
        for host in ["a.test", "x.A.test", "b.test", "x.b.test", "10.0.0.1"] {
            assert_eq!((to(host, false), to(host, true)), (None, None), "{host}");
        }
        assert!(to("xa.test", false).is_some());
        let parts = parsed(json!({"http_proxy": "http://p", "no_proxy": "test,*"})).unwrap();
        assert!(parts.to("idp.test", false).is_some() && parts.to("test", false).is_none());
        let all = parsed(json!({"http_proxy": "http://p", "no_proxy": "*"})).unwrap();
        assert_eq!((all.to("a", false), all.to("a", true)), (None, None));
    }

    #[test]
    fn addresses_and_credentials_are_checked() {
        for (name, value) in [
            ("http_proxy", "https://p"),
            ("http_proxy", "p:80"),
            ("https_proxy", "http://p/x"),
            ("https_proxy", "http://u:p@h"),
        ] {
            let mut options = json!({});
            options[name] = json!(value);
            let invalid = parsed(options).unwrap_err();
            assert_eq!(invalid.pointer, format!("/{name}"), "{value}");
            assert!(!invalid.to_string().contains("u:p"), "{invalid}");
        }
        let invalid =
            parsed(json!({"http_proxy": "http://p", "http_proxy_authorization": "a\r\nb: c"})).unwrap_err();
        assert_eq!(invalid.pointer, "/http_proxy_authorization");
    }
}
