//! The listener: port, address, TLS and compression.

use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::report::Report;
use super::security;
use super::settings::{Item, Settings};
use super::units;
use crate::Source;
use crate::finding::{Place, Severity};
use crate::output::{Listener, Protocol};

/// Spring Boot's default.
const PORT: u16 = 8080;

/// Adds the listener, and returns plugins of all routes.
pub fn read(settings: &Settings<'_>, source: &Source<'_>, report: &mut Report) -> Map<String, Value> {
    let server = settings.get("server");
    let get = |name: &str| server.as_ref().and_then(|server| server.get(name));
    let start = || Place { file: source.file.into(), position: model::Position::START };
    let port = get("port");
    let place = port.as_ref().map_or_else(start, Item::place);
    let number = match &port {
        None => Some(PORT),
        Some(item) => item.text().and_then(|text| text.parse().ok()).filter(|port| *port != 0),
    };
    let address = get("address").and_then(|item| item.some());
    let address =
        address.map(|address| if address == "localhost" { "127.0.0.1".to_owned() } else { address });
    let tls = tls(settings, get("ssl").as_ref(), source, report);
    match number {
        Some(port) => report.import.listeners.push(Listener {
            address: address.as_deref().and_then(|address| address.parse().ok()),
            port,
            protocol: Protocol::Http,
            tls,
            http2: get("http2.enabled").and_then(|item| item.bool()).unwrap_or(false),
            proxy_protocol: false,
            place,
        }),
        None => {
            let effect = "the port is chosen at random, or is not read: the gateway listens where its own settings say";
            report.find(Severity::Behaviour, place, "server.port", effect);
        }
    }
    if let Some(strategy) = get("forward-headers-strategy")
        && strategy.text().is_some_and(|text| !text.eq_ignore_ascii_case("none"))
    {
        let hint = "name the proxies in front of the gateway in `apisix.trusted_addresses`";
        report.item(
            Severity::Behaviour,
            &strategy,
            "forwarded headers of clients are not trusted",
            Some(hint),
        );
    }
    let mut plugins = Map::new();
    if let Some(compression) =
        get("compression").filter(|item| item.get("enabled").and_then(|item| item.bool()) == Some(true))
    {
        plugins.insert("gzip".to_owned(), gzip(&compression));
    }
    plugins
}

/// Settings of the gateway that treat paths and forwarded headers as the original does: these steps towards a normal
/// form of paths are not taken, and forwarded headers of clients pass.
pub fn paths(off: &[&str], report: &mut Report) {
    let start = Place { file: report.source.clone(), position: model::Position::START };
    for name in off {
        let path = format!("sluice.path.{name}");
        report.setting(&path, json!(false), start.clone());
        let effect = match *name {
            "merge_slashes" => {
                "routes are chosen with repeated slashes as the client wrote them, as in the original: `//admin` is another \
                                path than `/admin`"
            }
            _ => {
                "routes are chosen by the path as the client wrote it, as in the original: `/public/../admin` is below `/public/`"
            }
        };
        let hint = "set it to `true` if routes protect paths of servers that resolve other spellings of them";
        report.hint(Severity::Cosmetic, start.clone(), &path, effect, hint);
    }
    report.setting("apisix.trusted_addresses", json!(["0.0.0.0/0", "::/0"]), start);
}

fn gzip(compression: &Item<'_>) -> Value {
    let types = compression.get("mime-types").map(|item| item.texts()).filter(|types| !types.is_empty());
    let defaults = [
        "text/html",
        "text/xml",
        "text/plain",
        "text/css",
        "text/javascript",
        "application/javascript",
        "application/json",
        "application/xml",
    ];
    let types = types.unwrap_or_else(|| defaults.iter().map(|name| (*name).to_owned()).collect());
    let size = compression.get("min-response-size").and_then(|item| item.text());
    let size = size.as_deref().and_then(units::bytes).unwrap_or(2048).max(1);
    if let Some(agents) = compression.get("excluded-user-agents") {
        agents.whole();
    }
    json!({"types": types, "min_length": size})
}

/// Whether clients use TLS; adds the certificate.
fn tls(settings: &Settings<'_>, ssl: Option<&Item<'_>>, source: &Source<'_>, report: &mut Report) -> bool {
    let Some(ssl) = ssl else { return false };
    if ssl.get("enabled").and_then(|item| item.bool()) == Some(false) {
        ssl.whole();
        return false;
    }
    let bundle = ssl.get("bundle").and_then(|item| item.some());
    let bundle = bundle.and_then(|name| settings.get(&format!("spring.ssl.bundle.pem.{name}")));
    let text = |own: &str, bundled: &str| {
        let own = ssl.get(own).and_then(|item| item.some());
        own.or_else(|| bundle.as_ref().and_then(|bundle| bundle.get(bundled)).and_then(|item| item.some()))
    };
    let certificate =
        text("certificate", "keystore.certificate").and_then(|place| security::read(&place, source));
    let key = text("certificate-private-key", "keystore.private-key")
        .and_then(|place| security::read(&place, source));
    let store = ssl.any(&["key-store", "bundle"]);
    let client = ssl.get("client-auth").and_then(|item| item.text()).filter(|text| text != "none");
    let authority =
        text("trust-certificate", "truststore.certificate").and_then(|place| security::read(&place, source));
    let Some((certificate, key)) = certificate.zip(key) else {
        let effect = match store {
            Some(_) => {
                "the certificate is in a Java keystore, which is not read: handshakes fail until there is one"
            }
            None => "the certificate is not read: handshakes fail until there is one",
        };
        let hint = "export certificate and key as PEM, and name them by `server.ssl.certificate` and \
                    `server.ssl.certificate-private-key`";
        ssl.whole();
        report.item(Severity::Behaviour, ssl, effect, Some(hint));
        return true;
    };
    let mut resource = json!({"cert": certificate, "key": key, "snis": ["*"]});
    match (client, authority) {
        (None, _) => {}
        (Some(kind), Some(ca)) if kind == "need" => resource["client"] = json!({"ca": ca}),
        (Some(kind), authority) => {
            let effect = match authority {
                Some(_) => format!("certificates of clients are not requested: `{kind}` makes them optional"),
                None => "certificates of clients are not verified: their authorities are not read as PEM"
                    .to_owned(),
            };
            report.item(Severity::Guard, ssl, effect, None);
        }
    }
    ssl.whole();
    if let Some(bundle) = bundle {
        bundle.whole();
    }
    report.resource(Key::new(Kind::Ssl, "server"), resource, ssl.place());
    true
}
