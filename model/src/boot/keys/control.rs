//! Where resources come from, the Admin API, and what is beside the traffic.

use super::row::{Row, row};
use crate::boot::shape::Shape;

#[rustfmt::skip]
pub const DEPLOYMENT: &[Row] = &[
    row("deployment.role", Shape::OneOf(&["traditional", "data_plane", "control_plane"]), "traditional",
        "`traditional` serves traffic and the Admin API, `data_plane` traffic alone, `control_plane` the Admin API alone"),
    row("deployment.role_traditional.config_provider", Shape::Provider, "",
        "`embedded` (a store of its own), `etcd` (a cluster shared by several gateways, also with APISIX; the default if \
         `deployment.etcd.host` is set), `yaml` (`apisix.yaml`) or `json` (`apisix.json`). `yaml` or `json` without the \
         file is APISIX's standalone mode: resources come through the [Admin \
         API](operating.md#several-writes-at-once), and are kept in the embedded store").words("`embedded`"),
    row("deployment.role_data_plane.config_provider", Shape::FileProvider, "",
        "the same for a data plane; required unless `deployment.etcd.host` is set"),
    row("deployment.role_control_plane.config_provider", Shape::Provider, "", "the same for a control plane")
        .words("`embedded`"),
    row("deployment.etcd.host", Shape::EtcdHosts, r#"["http://127.0.0.1:2379"]"#,
        "members of one cluster; `https://` for TLS. etcd 3.4 or later"),
    row("deployment.etcd.prefix", Shape::EtcdPrefix, "/apisix", "prefix of every key"),
    row("deployment.etcd.user", Shape::Text, "",
        "this and the password, or neither; the user needs `readwrite` on the prefix, a data plane `read`"),
    row("deployment.etcd.password", Shape::Text, "", "password of the user"),
    row("deployment.etcd.timeout", Shape::Time, "30s",
        "for reading one page of keys. Connecting has 1 s, other requests 2 s; a write is answered within 3 s"),
    row("deployment.etcd.startup_retry", Shape::Count { min: 0, max: 1000 }, "2",
        "this many failed attempts are not logged"),
    row("deployment.etcd.tls.cert", Shape::Text, "", "file with the certificate shown to etcd; needs `key`"),
    row("deployment.etcd.tls.key", Shape::Text, "", "file with its key"),
    row("deployment.etcd.tls.verify", Shape::Bool, "true",
        "verify the servers, against `apisix.ssl.ssl_trusted_certificate`"),
    row("deployment.etcd.tls.sni", Shape::Text, "", "server name in TLS, sent and verified").words("the host"),
    row("deployment.etcd.progress_interval", Shape::Time, "2s", "silence after which a watch is probed").ours(),
    row("deployment.etcd.progress_timeout", Shape::Time, "2s", "time it has to answer before it is replaced").ours(),
    row("deployment.etcd.max_size", Shape::Size, "512m", "bytes of all keys and values under the prefix").ours(),
    row("deployment.etcd.keep_copy", Shape::Bool, "true", "keep a copy in the data folder, for starts without etcd")
        .ours(),
];

#[rustfmt::skip]
pub const ADMIN: &[Row] = &[
    row("apisix.enable_admin", Shape::Bool, "true", "the Admin API"),
    row("apisix.enable_admin_on_node_listen", Shape::Bool, "false", "serve it on the traffic ports as well").ours(),
    row("apisix.enable_control", Shape::Bool, "true", "the control API"),
    row("apisix.control.ip", Shape::Ip, "127.0.0.1", "address of the control API"),
    row("apisix.control.port", Shape::Port, "9090", "its port"),
    row("apisix.status.ip", Shape::Ip, "127.0.0.1",
        "address of the health pages for orchestrators, `/status` and `/status/ready`; they are off without `apisix.status`"),
    row("apisix.status.port", Shape::Port, "7085", "their port"),
    row("deployment.admin.admin_listen.ip", Shape::Ip, "127.0.0.1",
        "address of the Admin API; `0.0.0.0` for other machines, as in APISIX without it"),
    row("deployment.admin.admin_listen.port", Shape::Port, "9180", "its port"),
    row("deployment.admin.admin_key", Shape::AdminKeys, "[{name: admin, role: admin}]",
        "list of `{name, key, role}`; roles `admin`, `viewer` (only GET, and not the history)")
        .words("generated at first start"),
    row("deployment.admin.admin_key_required", Shape::Bool, "true", "`false`: no key is checked, see `hosts`"),
    row("deployment.admin.hosts", Shape::Texts, "[]",
        "names with a dot by which clients may address the control API, the metrics, and the Admin API while \
         `admin_key_required` is `false`; `\"*\"` is any. IP addresses, `localhost` and names without a dot (as in \
         container networks) are always allowed. Any other `Host` gets 403: it may belong to a web page whose name points \
         to this machine (DNS rebinding). With a key, any `Host` is accepted").ours(),
    row("deployment.admin.allow_admin", Shape::Networks, "[127.0.0.0/24]",
        "client addresses allowed to use the Admin API. If it includes other machines and `admin_listen.ip` is absent, a \
         warning says that they cannot reach it"),
    row("deployment.admin.admin_api_version", Shape::OneOf(&["v3", "v2", "default"]), "v3",
        "`v2` or `default` (the same, as in APISIX): the response format of APISIX 2"),
    row("deployment.admin.enable_admin_cors", Shape::Bool, "true", "the Admin API sends CORS headers"),
    row("deployment.admin.enable_admin_ui", Shape::Bool, "true",
        "the [dashboard](dashboard.md) is served at `/ui/` of the Admin API's address"),
    row("deployment.admin.https_admin", Shape::Bool, "false",
        "the Admin API speaks TLS and nothing else; needs the next two"),
    row("deployment.admin.admin_api_mtls.admin_ssl_cert", Shape::Text, "", "file with its certificate"),
    row("deployment.admin.admin_api_mtls.admin_ssl_cert_key", Shape::Text, "", "file with its key"),
    row("deployment.admin.admin_api_mtls.admin_ssl_ca_cert", Shape::Text, "",
        "a file with the authorities of clients, which then need a certificate; refused clients are logged with the \
         reason, at most once a second"),
    row("deployment.admin.max_connections", Shape::Count { min: 1, max: 100_000 }, "256",
        "concurrent connections of the Admin API: a further one replaces the connection that has waited longest for a \
         request, or waits if all are being answered").ours(),
    row("deployment.admin.max_refused_connections", Shape::Count { min: 0, max: 100_000 }, "16",
        "concurrent connections refused by `allow_admin`, beyond which they are closed").ours(),
    row("deployment.admin.client_header_timeout", Shape::Time, "10s",
        "for a request's head and between two requests").ours(),
    row("deployment.admin.client_body_timeout", Shape::Time, "30s", "for a request's body").ours(),
    row("deployment.admin.send_timeout", Shape::Time, "30s", "for the client to read 64 KiB of the answer").ours(),
    row("deployment.admin.connection_timeout", Shape::Time, "10m",
        "highest age of a connection to the Admin API. All these limits also hold for the control API and the status API, \
         each separately").ours(),
    row("deployment.admin.outcome_wait", Shape::Time, "20ms",
        "time the answer to a write waits for the change to be applied, to report `X-Sluice-Outcome`; after that it is \
         `pending`").ours(),
    row("deployment.admin.max_failed_keys", Shape::Count { min: 0, max: 1_000_000 }, "60",
        "wrong keys one address (an IPv6 /64) may send in a minute; after that it gets 429 even with a right key; 0 is no \
         limit").ours(),
];

#[rustfmt::skip]
pub const SLUICE: &[Row] = &[
    row("sluice.history.revisions", Shape::Count { min: 0, max: 1_000_000 }, "1000",
        "writes that the embedded store or etcd remembers; the oldest are deleted first, 0 keeps none").ours(),
    row("sluice.history.size", Shape::Size, "64m", "their bytes").ours(),
    row("sluice.explain.key", Shape::LongKey, "",
        "requests with this key get an [explanation](explain.md#on-live-requests); at least 16 visible characters; off \
         without it").ours(),
    row("sluice.explain.header", Shape::HeaderName, "X-Sluice-Explain", "the header of the request and of the answer")
        .ours(),
    row("sluice.explain.size", Shape::Count { min: 128, max: 8192 }, "2048", "bytes of an explanation").ours(),
    row("sluice.tap", Shape::Switch, "on",
        "with `off` no [tap](dashboard.md#tap) can be opened, so the Admin API shows no single requests").ours(),
    row("sluice.acme.directory", Shape::Text, "https://acme-v02.api.letsencrypt.org/directory",
        "URL of the ACME server's directory, by default that of Let's Encrypt; the section `sluice.acme` switches \
         [ACME](operating.md#certificates-by-acme) on").ours(),
    row("sluice.acme.accept_terms", Shape::Bool, "false", "must be `true`: the server's terms of service are accepted")
        .ours(),
    row("sluice.acme.domains", Shape::Any, "",
        "a list of certificates, each a name or a list of names; at most 100").ours(),
    row("sluice.acme.challenge", Shape::OneOf(&["http-01", "tls-alpn-01"]), "http-01", "how names are proved").ours(),
    row("sluice.acme.email", Shape::Text, "", "contact of the account").ours(),
    row("sluice.acme.ca", Shape::Text, "",
        "a file with the authorities that certify the ACME server itself, instead of `ssl_trusted_certificate`").ours(),
    row("sluice.acme.eab.kid", Shape::Text, "", "external account to which the ACME account is bound").ours(),
    row("sluice.acme.eab.hmac_key", Shape::Text, "", "its key in base64url").ours(),
    row("sluice.acme.timeout", Shape::Time, "5m", "for one certificate").ours(),
    row("sluice.acme.retry", Shape::Time, "1m", "the pause after a failure, twice as long after each, up to 6 h").ours(),
];
