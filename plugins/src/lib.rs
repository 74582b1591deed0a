//! The native plugins, a file each, and the list of them.
//!
//! A plugin is one file with its settings, its schema, its code and its tests,
//! and one line in the list below. Everything else (the check in the Admin API,
//! the order, dispatch) follows from the list. Plugins see only `sdk`: no
//! sockets, no stores, nothing of the proxy.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_macros,
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "a test"
    )
)]

mod absent;
pub mod acl;
#[cfg(test)]
mod agree;
pub mod api_breaker;
pub mod attach_consumer_label;
mod auth;
pub mod authz_casbin;
pub mod authz_keycloak;
pub mod basic_auth;
pub mod batch_requests;
pub mod body_transformer;
pub mod brotli;
mod catalog;
pub mod clickhouse_logger;
pub mod client_control;
pub mod collector;
pub mod consumer_restriction;
pub mod cors;
pub mod csrf;
pub mod data_mask;
pub mod datadog;
mod decode;
pub mod degraphql;
pub mod echo;
mod edits;
pub mod elasticsearch_logger;
mod encoding;
mod envoy;
pub mod error_log_logger;
pub mod error_page;
pub mod example_plugin;
mod expiry;
pub mod ext_authz;
pub mod ext_plugin;
pub mod ext_plugin_post_req;
pub mod ext_plugin_post_resp;
pub mod ext_plugin_pre_req;
pub mod ext_proc;
pub mod fault_injection;
pub mod file_logger;
mod form;
pub mod forward_auth;
pub mod google_cloud_logging;
pub mod grpc_transcode;
pub mod grpc_web;
pub mod gzip;
pub mod hmac_auth;
pub mod http_logger;
pub mod ip_restriction;
mod json_path;
pub mod jwe_decrypt;
mod jwks;
pub mod jwks_auth;
pub mod jwt_auth;
pub mod kafka_logger;
pub mod key_auth;
pub mod ldap_auth;
pub mod limit_conn;
pub mod limit_count;
pub mod limit_req;
mod limits;
mod logger;
pub mod loki_logger;
mod lua;
mod meta;
pub mod mocking;
pub mod multi_auth;
pub mod oas_validator;
pub mod ocsp_stapling;
pub mod opa;
pub mod openid_connect;
pub mod opentelemetry;
pub mod otlp_logger;
pub mod path_characters;
mod preceded;
pub mod prometheus;
mod protobuf;
pub mod proxy_cache;
pub mod proxy_mirror;
pub mod proxy_rewrite;
pub mod public_api;
mod query;
mod ranges;
pub mod real_ip;
pub mod redirect;
pub mod referer_restriction;
mod remote;
pub mod request_id;
pub mod request_validation;
pub mod response_rewrite;
mod rules;
pub mod server_info;
pub mod skywalking;
pub mod skywalking_logger;
pub mod splunk_hec_logging;
pub mod static_files;
pub mod stream;
pub mod syslog;
pub mod tcp_logger;
pub mod traffic_label;
pub mod traffic_split;
mod tree;
pub mod ua_restriction;
pub mod udp_logger;
pub mod uri_blocker;
mod wheel;
mod within;
pub mod wolf_rbac;
pub mod workflow;
pub mod zipkin;
pub mod zstd;

pub use catalog::{Catalog, not_listed};

use model::Invalid;
use model::apisix_plugins::{self, ApisixPlugin, Subsystem};
use sdk::Reply;
use sdk::instance::{Factory, Linked};
use serde_json::{Value, json};

/// Makes the list of all plugins that are linked in.
macro_rules! plugins {
    ($($module:ident::$kind:ident,)*) => {
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
    path_characters::PathCharacters,
    real_ip::RealIp,
    client_control::ClientControl,
    request_id::RequestId,
    zipkin::Zipkin,
    skywalking::Skywalking,
    opentelemetry::Opentelemetry,
    ext_plugin_pre_req::ExtPluginPreReq,
    fault_injection::FaultInjection,
    mocking::Mocking,
    batch_requests::BatchRequests,
    cors::Cors,
    ip_restriction::IpRestriction,
    ua_restriction::UaRestriction,
    referer_restriction::RefererRestriction,
    csrf::Csrf,
    uri_blocker::UriBlocker,
    request_validation::RequestValidation,
    multi_auth::MultiAuth,
    openid_connect::OpenidConnect,
    authz_casbin::AuthzCasbin,
    wolf_rbac::WolfRbac,
    ldap_auth::LdapAuth,
    hmac_auth::HmacAuth,
    basic_auth::BasicAuth,
    jwt_auth::JwtAuth,
    jwe_decrypt::JweDecrypt,
    jwks_auth::JwksAuth,
    key_auth::KeyAuth,
    acl::Acl,
    consumer_restriction::ConsumerRestriction,
    attach_consumer_label::AttachConsumerLabel,
    ext_authz::ExtAuthz,
    forward_auth::ForwardAuth,
    opa::Opa,
    authz_keycloak::AuthzKeycloak,
    ext_proc::ExtProc,
    data_mask::DataMask,
    error_log_logger::ErrorLogLogger,
    proxy_cache::ProxyCache,
    body_transformer::BodyTransformer,
    proxy_mirror::ProxyMirror,
    proxy_rewrite::ProxyRewrite,
    workflow::Workflow,
    api_breaker::ApiBreaker,
    limit_conn::LimitConn,
    limit_count::LimitCount,
    limit_req::LimitReq,
    zstd::Zstd,
    brotli::Brotli,
    gzip::Gzip,
    server_info::ServerInfo,
    traffic_label::TrafficLabel,
    traffic_split::TrafficSplit,
    redirect::Redirect,
    response_rewrite::ResponseRewrite,
    oas_validator::OasValidator,
    degraphql::Degraphql,
    grpc_transcode::GrpcTranscode,
    grpc_web::GrpcWeb,
    public_api::PublicApi,
    prometheus::Prometheus,
    datadog::Datadog,
    error_page::ErrorPage,
    otlp_logger::OtlpLogger,
    loki_logger::LokiLogger,
    elasticsearch_logger::ElasticsearchLogger,
    echo::Echo,
    http_logger::HttpLogger,
    splunk_hec_logging::SplunkHecLogging,
    skywalking_logger::SkywalkingLogger,
    google_cloud_logging::GoogleCloudLogging,
    tcp_logger::TcpLogger,
    kafka_logger::KafkaLogger,
    syslog::Syslog,
    udp_logger::UdpLogger,
    file_logger::FileLogger,
    clickhouse_logger::ClickhouseLogger,
    static_files::StaticFiles,
    example_plugin::ExamplePlugin,
    ocsp_stapling::OcspStapling,
    ext_plugin_post_req::ExtPluginPostReq,
    ext_plugin_post_resp::ExtPluginPostResp,
}

/// The names of all plugins this build has, by priority from high to low.
pub fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name()).collect()
}

/// The schema of a plugin whose settings are those of APISIX and no others.
fn apisix_schema(name: &str) -> Value {
    apisix_plugins::find(Subsystem::Http, name)
        .map(|known| ApisixPlugin::facts(known).schema)
        .unwrap_or_default()
}

/// The schema of its metadata.
fn apisix_metadata_schema(name: &str) -> Option<Value> {
    apisix_plugins::find(Subsystem::Http, name).and_then(|known| ApisixPlugin::facts(known).metadata_schema)
}

/// Reads a status that a schema without an upper bound lets through. An invalid one becomes a status
/// that the plugin refuses, with its pointer.
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

/// Reason of a 413.
const TOO_LARGE: &str = "the request body exceeds the plugin's limit";

/// Buffers the request's body, up to `limit` bytes; a longer one is rejected.
fn buffer_body(x: &mut sdk::Exchange<'_>, limit: usize) -> sdk::Step {
    let reject = || sdk::Step::Reply(Reply::status(413).because(TOO_LARGE));
    if matches!(x.request().framing, sdk::Framing::Length(length) if length > limit as u64) {
        return reject();
    }
    if x.lacks_body(limit) {
        return sdk::Step::Body(limit);
    }
    match x.body_state() {
        sdk::exchange::Body::Streaming | sdk::exchange::Body::TooLarge => reject(),
        _ if x.body().len() > limit => reject(),
        _ => sdk::Step::Wait,
    }
}

/// Rejects a request for whose bodies the worker has no memory left.
fn no_memory() -> sdk::Step {
    const REASON: &str = "the gateway's memory for request and response bodies is used up";
    sdk::Step::Reply(Reply::status(503).because(REASON))
}

/// Returns the reply for a refused client: the operator's message, or the status alone; `reason` is for
/// the operator.
fn refusal(status: u16, message: Option<&str>, reason: &'static str) -> Reply {
    let reply = match message {
        Some(message) => Reply::json(status, &json!({ "error_msg": message })),
        None => Reply::status(status),
    };
    reply.because(reason)
}

#[cfg(test)]
mod tests {
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
    fn the_pages_for_users_count_the_plugins() {
        let count = ROWS.len();
        assert!(
            include_str!("../../README.md").contains(&format!(" {count} plugins;")),
            "README.md: {count}"
        );
        let changes = include_str!("../../CHANGELOG.md");
        assert!(changes.contains(&format!("[{count} plugins of routes")), "CHANGELOG.md: {count}");
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
