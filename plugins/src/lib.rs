//! The native plugins, a file each, and the list of them.
//!
//! A plugin is one file with its settings, its schema, its code and its tests,
//! and one line in the list below. Everything else (the check in the Admin API,
//! the order, dispatch) follows from the list. Plugins see only `sdk`: no
//! sockets, no stores, nothing of the proxy.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

mod absent;
#[cfg(test)]
mod agree;
mod auth;
mod catalog;
mod decode;
mod edits;
mod encoding;
mod limits;
mod logger;
mod lua;
mod meta;
mod query;
mod ranges;
mod rules;
pub mod stream;
mod tree;

pub use catalog::{Catalog, not_listed};

use model::Invalid;
use sdk::Reply;
use sdk::instance::{Factory, Linked};
use serde_json::json;

/// Makes the list of all plugins that are linked in.
macro_rules! plugins {
    ($($variant:ident($module:ident::$kind:ident),)*) => {
        $(pub mod $module;)*

        pub(crate) static ROWS: &[&dyn Factory] = &[$(&Linked::<$module::$kind>::NEW,)*];

        /// Whether a plugin's settings, as its schema accepts them, are what its type takes.
        #[cfg(test)]
        pub(crate) static TYPED: &[fn(serde_json::Value) -> Result<(), String>] = &[$(|config| {
            serde_json::from_value::<<$module::$kind as sdk::Plugin>::Config>(config)
                .map(drop)
                .map_err(|error| error.to_string())
        },)*];
    };
}

// The list: one line a plugin, from high to low priority.
plugins! {
    PathCharacters(path_characters::PathCharacters),
    RealIp(real_ip::RealIp),
    RequestId(request_id::RequestId),
    FaultInjection(fault_injection::FaultInjection),
    Mocking(mocking::Mocking),
    BatchRequests(batch_requests::BatchRequests),
    Cors(cors::Cors),
    IpRestriction(ip_restriction::IpRestriction),
    UaRestriction(ua_restriction::UaRestriction),
    RefererRestriction(referer_restriction::RefererRestriction),
    Csrf(csrf::Csrf),
    UriBlocker(uri_blocker::UriBlocker),
    RequestValidation(request_validation::RequestValidation),
    MultiAuth(multi_auth::MultiAuth),
    HmacAuth(hmac_auth::HmacAuth),
    BasicAuth(basic_auth::BasicAuth),
    JwtAuth(jwt_auth::JwtAuth),
    KeyAuth(key_auth::KeyAuth),
    ConsumerRestriction(consumer_restriction::ConsumerRestriction),
    ForwardAuth(forward_auth::ForwardAuth),
    ProxyCache(proxy_cache::ProxyCache),
    BodyTransformer(body_transformer::BodyTransformer),
    ProxyMirror(proxy_mirror::ProxyMirror),
    ProxyRewrite(proxy_rewrite::ProxyRewrite),
    Workflow(workflow::Workflow),
    ApiBreaker(api_breaker::ApiBreaker),
    LimitConn(limit_conn::LimitConn),
    LimitCount(limit_count::LimitCount),
    LimitReq(limit_req::LimitReq),
    Brotli(brotli::Brotli),
    Gzip(gzip::Gzip),
    ServerInfo(server_info::ServerInfo),
    TrafficSplit(traffic_split::TrafficSplit),
    Redirect(redirect::Redirect),
    ResponseRewrite(response_rewrite::ResponseRewrite),
    GrpcWeb(grpc_web::GrpcWeb),
    PublicApi(public_api::PublicApi),
    Prometheus(prometheus::Prometheus),
    ErrorPage(error_page::ErrorPage),
    Echo(echo::Echo),
    HttpLogger(http_logger::HttpLogger),
    TcpLogger(tcp_logger::TcpLogger),
    Syslog(syslog::Syslog),
    FileLogger(file_logger::FileLogger),
    OcspStapling(ocsp_stapling::OcspStapling),
}

/// The names of all plugins this build has, by priority from high to low.
pub fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name()).collect()
}

/// A status as a schema without an upper bound lets it through. What is none becomes one that the
/// plugin refuses, with its pointer.
fn any_status<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    let status: u64 = serde::Deserialize::deserialize(from)?;
    Ok(u16::try_from(status).unwrap_or(u16::MAX))
}

/// Refuses a status that no answer can have, where APISIX's schema sets no upper bound.
fn check_status(status: u16, pointer: &str) -> Result<(), Invalid> {
    if status > 999 {
        return Err(Invalid::new("a status must be at most 999").at(pointer).got(status.to_string()));
    }
    Ok(())
}

/// What a client is told that is refused: the operator's message, or the status alone.
fn refusal(status: u16, message: Option<&str>) -> Reply {
    match message {
        Some(message) => Reply::json(status, &json!({ "error_msg": message })),
        None => Reply::status(status),
    }
}

#[cfg(test)]
mod tests {
    use model::apisix_plugins;

    use super::*;

    #[test]
    fn a_status_has_three_digits() {
        assert!(check_status(999, "/code").is_ok());
        assert_eq!(check_status(1000, "/code").unwrap_err().pointer, "/code");
    }

    #[test]
    fn the_list_is_sorted_and_without_doubles() {
        for pair in ROWS.windows(2) {
            assert!(pair[0].priority() > pair[1].priority(), "{} before {}", pair[0].name(), pair[1].name());
        }
        let mut names: Vec<_> = ROWS.iter().map(|row| row.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
    }

    #[test]
    fn every_plugin_states_its_order_as_apisix_has_it() {
        for row in ROWS.iter().filter(|row| !apisix_plugins::OWN.contains(&row.name())) {
            let known = apisix_plugins::find(apisix_plugins::Subsystem::Http, row.name())
                .unwrap_or_else(|| panic!("{} is in no list of APISIX's", row.name()));
            assert_eq!(row.priority(), known.priority, "{}", row.name());
        }
    }
}
