//! The addresses of an imported file, or of the command line, as the text of a `config.yaml`.

use std::net::{IpAddr, SocketAddr};

use importers::{Format, Import, Listener, Place, Protocol};
use model::Invalid;
use model::document::Position;
use serde_json::{Map, Value, json};

/// An address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub address: Option<IpAddr>,
    pub port: u16,
    pub protocol: Protocol,
    pub tls: bool,
    pub http2: bool,
    pub proxy_protocol: bool,
}

/// Adds the addresses on which the original listens if its file names none.
pub fn defaults(format: Format, import: &mut Import, file: &str) {
    let ports: &[(u16, bool)] = match format {
        // `proxy_listen` of kong.conf.
        Format::Kong => &[(8000, false), (8443, true)],
        // `server.port` of Spring Boot.
        Format::SpringCloudGateway | Format::Zuul => &[(8080, false)],
        Format::Envoy | Format::Nginx => &[],
    };
    if import.listeners.is_empty() {
        import.listeners.extend(ports.iter().map(|(port, tls)| Listener {
            address: None,
            port: *port,
            protocol: Protocol::Http,
            tls: *tls,
            http2: true,
            proxy_protocol: false,
            place: Place { file: file.into(), position: Position::START },
        }));
    }
}

/// The addresses, each once: an address that another one covers is left out.
pub fn wanted(listeners: &[Listener]) -> Vec<Wanted> {
    let mut all: Vec<Wanted> = Vec::new();
    for one in listeners {
        let Listener { address, port, protocol, tls, http2, proxy_protocol, .. } = *one;
        let address = address.filter(|address| !address.is_unspecified());
        let same = |other: &&mut Wanted| {
            let datagrams = |protocol| protocol == Protocol::Udp;
            other.port == port && datagrams(other.protocol) == datagrams(protocol)
        };
        let mut others = all.iter_mut().filter(same);
        let other =
            others.find(|other| other.address == address || other.address.is_none() || address.is_none());
        match other {
            Some(other) => {
                other.address = other.address.filter(|_| address.is_some());
                other.tls |= tls;
                other.http2 |= http2;
                other.proxy_protocol |= proxy_protocol;
            }
            None => all.push(Wanted { address, port, protocol, tls, http2, proxy_protocol }),
        }
    }
    // An address that became that of all interfaces covers those before it.
    let wide: Vec<Wanted> = all.iter().copied().filter(|one| one.address.is_none()).collect();
    let datagrams = |one: &Wanted| one.protocol == Protocol::Udp;
    let covered = |one: &Wanted| {
        one.address.is_some()
            && wide.iter().any(|other| other.port == one.port && datagrams(other) == datagrams(one))
    };
    all.retain(|one| !covered(one));
    all
}

/// Reads one `--listen`.
///
/// # Errors
/// An address that cannot be read.
pub fn read(text: &str) -> Result<Wanted, Invalid> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let expected = "an address such as :8080, 127.0.0.1:8080 or [::1]:8080, which may begin with http://, https://, \
                    tcp://, tls:// or udp://";
    let wrong = || Invalid::new("the address cannot be listened on").expected(expected);
    let (protocol, tls) = match scheme {
        "http" => (Protocol::Http, false),
        "https" => (Protocol::Http, true),
        "tcp" => (Protocol::Tcp, false),
        "tls" => (Protocol::Tcp, true),
        "udp" => (Protocol::Udp, false),
        _ => return Err(wrong()),
    };
    let (address, port) = match rest.strip_prefix(':') {
        Some(port) => (None, port.parse::<u16>().map_err(|_| wrong())?),
        None => {
            let address = rest.parse::<SocketAddr>().map_err(|_| wrong())?;
            (Some(address.ip()), address.port())
        }
    };
    if port == 0 {
        return Err(wrong());
    }
    Ok(Wanted { address, port, protocol, tls, http2: true, proxy_protocol: false })
}

/// The `config.yaml` of a gateway with these addresses, whose resources are in a file. Without addresses it listens
/// where it does by default.
pub fn config(wanted: &[Wanted], provider: &str) -> Value {
    let mut config = json!({
        "deployment": {"role": "data_plane", "role_data_plane": {"config_provider": provider}},
    });
    if wanted.is_empty() {
        return config;
    }
    let of =
        |protocol, tls| wanted.iter().filter(move |one| one.protocol == protocol && one.tls == tls).copied();
    let http = |tls| -> (Vec<Value>, Option<u16>) {
        let plain = of(Protocol::Http, tls).filter(|one| !one.proxy_protocol).map(|one| {
            let mut entry = json!({"port": one.port, "enable_http2": one.http2});
            if let Some(address) = one.address {
                entry["ip"] = address.to_string().into();
            }
            entry
        });
        (plain.collect(), of(Protocol::Http, tls).find(|one| one.proxy_protocol).map(|one| one.port))
    };
    let mut apisix = Map::new();
    let ((plain, plain_proxied), (tls, tls_proxied)) = (http(false), http(true));
    let serves_http = wanted.iter().any(|one| one.protocol == Protocol::Http);
    if !plain.is_empty() {
        apisix.insert("node_listen".to_owned(), plain.into());
    } else if serves_http {
        // A gateway has a port without TLS: this one is for this machine alone.
        apisix.insert("node_listen".to_owned(), json!([{"ip": "127.0.0.1", "port": 9080}]));
    }
    let ssl = if tls.is_empty() { json!({"enable": false}) } else { json!({"enable": true, "listen": tls}) };
    apisix.insert("ssl".to_owned(), ssl);
    let proxied = [("listen_http_port", plain_proxied), ("listen_https_port", tls_proxied)];
    let proxied: Map<String, Value> =
        proxied.into_iter().filter_map(|(name, port)| Some((name.to_owned(), port?.into()))).collect();
    if !proxied.is_empty() {
        apisix.insert("proxy_protocol".to_owned(), proxied.into());
    }
    let streams: Vec<&Wanted> = wanted.iter().filter(|one| one.protocol != Protocol::Http).collect();
    if !streams.is_empty() {
        let mode = if serves_http { "http&stream" } else { "stream" };
        apisix.insert("proxy_mode".to_owned(), mode.into());
        apisix.insert("stream_proxy".to_owned(), stream_proxy(&streams));
    }
    // The APIs for this machine give way to traffic.
    let takes = |port| wanted.iter().any(|one| one.port == port && one.protocol != Protocol::Udp);
    if takes(9090) {
        apisix.insert("enable_control".to_owned(), false.into());
    }
    if takes(9091) {
        config["plugin_attr"] = json!({"prometheus": {"enable_export_server": false}});
    }
    config["apisix"] = apisix.into();
    config
}

fn stream_proxy(wanted: &[&Wanted]) -> Value {
    let address = |one: &Wanted| match one.address {
        Some(address) => Value::from(SocketAddr::new(address, one.port).to_string()),
        None => one.port.into(),
    };
    let of = |protocol| wanted.iter().filter(move |one| one.protocol == protocol);
    let tcp: Vec<Value> = of(Protocol::Tcp)
        .map(|one| {
            let mut entry = json!({"addr": address(one)});
            if one.tls {
                entry["tls"] = true.into();
            }
            if one.proxy_protocol {
                entry["proxy_protocol"] = true.into();
            }
            entry
        })
        .collect();
    let udp: Vec<Value> = of(Protocol::Udp).map(|one| address(one)).collect();
    let mut streams = Map::new();
    if !tcp.is_empty() {
        streams.insert("tcp".to_owned(), tcp.into());
    }
    if !udp.is_empty() {
        streams.insert("udp".to_owned(), udp.into());
    }
    streams.into()
}

#[cfg(test)]
mod tests {
    use model::boot::Boot;

    use super::*;

    fn boot(listens: &[&str]) -> Boot {
        let wanted: Vec<Wanted> = listens.iter().map(|text| read(text).unwrap()).collect();
        let text = config(&wanted, "yaml").to_string();
        let (boot, warnings) = Boot::parse("test", &text, &plugins::names(), &|_| None).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        boot
    }

    fn plain(boot: &Boot) -> Vec<String> {
        let listen = boot.listen.iter().filter(|one| !one.optional);
        listen.map(|one| one.address.to_string()).collect()
    }

    #[test]
    fn addresses_become_a_valid_configuration() {
        let one = boot(&[":8000", "https://:8443"]);
        assert_eq!(plain(&one), ["0.0.0.0:8000"]);
        assert_eq!(one.tls.listen[0].address.port(), 8443);
        assert!(boot(&["127.0.0.1:8000"]).tls.listen.is_empty());
        assert_eq!(plain(&boot(&["[::1]:8000"])), ["[::1]:8000"]);
        assert_eq!(plain(&boot(&["https://:8443"])), ["127.0.0.1:9080"]);
        assert_eq!(plain(&boot(&[])), ["0.0.0.0:9080"]);
        let streams = boot(&["tcp://:9100", "tls://127.0.0.1:9101", "udp://:53"]);
        assert!(!streams.proxy_mode.serves_http());
        assert_eq!(streams.streams.tcp.iter().map(|one| one.tls).collect::<Vec<_>>(), [false, true]);
        assert_eq!(streams.streams.udp[0].port(), 53);
        assert!(boot(&[":9080", "tcp://:9100"]).proxy_mode.serves_http());
        let taken = boot(&[":9090", ":9091"]);
        assert!(taken.control.is_none() && taken.prometheus.export.is_none());
    }

    #[test]
    fn wrong_addresses_are_refused() {
        for text in ["8080", ":0", "a:80", "ftp://:80", ":99999", ""] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_is_listened_on_once() {
        let one = |address: Option<&str>, port, tls| Listener {
            address: address.map(|address| address.parse().unwrap()),
            port,
            protocol: Protocol::Http,
            tls,
            http2: false,
            proxy_protocol: false,
            place: Place { file: "f".into(), position: Position::START },
        };
        let all = [
            one(Some("127.0.0.1"), 80, false),
            one(Some("127.0.0.2"), 80, false),
            one(None, 80, false),
            one(Some("0.0.0.0"), 80, false),
            one(Some("127.0.0.1"), 443, true),
            one(Some("127.0.0.2"), 443, true),
        ];
        let wanted = wanted(&all);
        let shown: Vec<_> =
            wanted.iter().map(|one| (one.address.map(|ip| ip.to_string()), one.port)).collect();
        let local = |ip: &str| Some(ip.to_owned());
        assert_eq!(shown, [(None, 80), (local("127.0.0.1"), 443), (local("127.0.0.2"), 443)]);
    }
}
