//! The native plugins, a file each, and the list of them.
//!
//! A plugin is one file with its settings, its schema, its code and its tests,
//! and one line in the list below. Everything else (the check in the Admin API,
//! the order, dispatch) follows from the list. Plugins see only `sdk`: no
//! sockets, no stores, nothing of the proxy.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

mod auth;
mod catalog;
mod chain;
mod edits;
mod encoding;
mod lua;
mod meta;
mod query;
mod ranges;
mod rules;

pub use catalog::{Catalog, not_listed};

use model::Invalid;
use sdk::chain::{Phase, Phases};
use sdk::consumers::Credential;
use sdk::{Build, Chunk, Doubtful, Exchange, Plugin, Reply, Step};
use serde_json::{Value, json};

/// What the catalog knows of a plugin without having built a stage of it.
pub(crate) struct Row {
    pub name: &'static str,
    pub priority: i32,
    pub version: &'static str,
    pub auth: bool,
    /// All phases in which a stage of it may have work.
    pub phases: Phases,
    pub schema: fn() -> Value,
    pub consumer_schema: fn() -> Option<Value>,
    pub metadata_schema: fn() -> Option<Value>,
    /// Makes a stage of a checked configuration.
    pub build: fn(Value, &mut Build<'_>) -> Result<Native, Invalid>,
    pub credential: fn(&Value) -> Result<Option<Credential>, Invalid>,
}

/// Makes the enum of all stages, its dispatch by `match`, and the rows of the catalog.
macro_rules! plugins {
    ($($variant:ident($module:ident::$kind:ident),)*) => {
        $(pub mod $module;)*

        /// A stage: one configured plugin.
        pub(crate) enum Native {
            $($variant($module::$kind),)*
        }

        pub(crate) static ROWS: &[Row] = &[$(Row {
            name: <$module::$kind as Plugin>::NAME,
            priority: <$module::$kind as Plugin>::PRIORITY,
            version: <$module::$kind as Plugin>::VERSION,
            auth: <$module::$kind as Plugin>::AUTH,
            phases: <$module::$kind as Plugin>::PHASES,
            schema: <$module::$kind as Plugin>::schema,
            consumer_schema: <$module::$kind as Plugin>::consumer_schema,
            metadata_schema: <$module::$kind as Plugin>::metadata_schema,
            build: |config, cx| build::<$module::$kind>(config, cx).map(Native::$variant),
            credential: <$module::$kind as Plugin>::credential,
        },)*];

        impl Native {
            /// The phases this stage takes part in.
            pub(crate) fn phases(&self) -> Phases {
                match self { $(Native::$variant(stage) => stage.phases(),)* }
            }

            pub(crate) fn refused_in_path(&self) -> Option<Doubtful> {
                match self { $(Native::$variant(stage) => stage.refused_in_path(),)* }
            }

            /// Asks the stage in one of the phases before the upstream.
            #[inline]
            pub(crate) fn ask(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
                match self { $(Native::$variant(stage) => match phase {
                    Phase::Rewrite => stage.rewrite(x),
                    Phase::Access => stage.access(x),
                    Phase::BeforeProxy => stage.before_proxy(x),
                    Phase::HeaderFilter | Phase::BodyFilter | Phase::Log => Step::Next,
                },)* }
            }

            #[inline]
            pub(crate) fn header_filter(&self, x: &mut Exchange<'_>) {
                match self { $(Native::$variant(stage) => stage.header_filter(x),)* }
            }

            #[inline]
            pub(crate) fn filters_body(&self, x: &Exchange<'_>) -> bool {
                match self { $(Native::$variant(stage) => stage.filters_body(x),)* }
            }

            #[inline]
            pub(crate) fn holds_body(&self, x: &Exchange<'_>) -> bool {
                match self { $(Native::$variant(stage) => stage.holds_body(x),)* }
            }

            #[inline]
            pub(crate) fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) {
                match self { $(Native::$variant(stage) => stage.body_filter(x, chunk),)* }
            }

            #[inline]
            pub(crate) fn log(&self, x: &mut Exchange<'_>) {
                match self { $(Native::$variant(stage) => stage.log(x),)* }
            }

            pub(crate) async fn wait(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
                match self { $(Native::$variant(stage) => stage.wait(phase, x).await,)* }
            }
        }
    };
}

// The list: one line a plugin, from high to low priority.
plugins! {
    PathCharacters(path_characters::PathCharacters),
    RealIp(real_ip::RealIp),
    RequestId(request_id::RequestId),
    FaultInjection(fault_injection::FaultInjection),
    Mocking(mocking::Mocking),
    Cors(cors::Cors),
    IpRestriction(ip_restriction::IpRestriction),
    UaRestriction(ua_restriction::UaRestriction),
    RefererRestriction(referer_restriction::RefererRestriction),
    Csrf(csrf::Csrf),
    UriBlocker(uri_blocker::UriBlocker),
    MultiAuth(multi_auth::MultiAuth),
    HmacAuth(hmac_auth::HmacAuth),
    BasicAuth(basic_auth::BasicAuth),
    JwtAuth(jwt_auth::JwtAuth),
    KeyAuth(key_auth::KeyAuth),
    ConsumerRestriction(consumer_restriction::ConsumerRestriction),
    ForwardAuth(forward_auth::ForwardAuth),
    ProxyCache(proxy_cache::ProxyCache),
    ProxyMirror(proxy_mirror::ProxyMirror),
    ProxyRewrite(proxy_rewrite::ProxyRewrite),
    LimitCount(limit_count::LimitCount),
    Brotli(brotli::Brotli),
    Gzip(gzip::Gzip),
    Redirect(redirect::Redirect),
    ResponseRewrite(response_rewrite::ResponseRewrite),
    Prometheus(prometheus::Prometheus),
    ErrorPage(error_page::ErrorPage),
}

/// The names of all plugins this build has, by priority from high to low.
pub fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).collect()
}

fn build<P: Plugin>(config: Value, cx: &mut Build<'_>) -> Result<P, Invalid> {
    // The schema was checked before, so this fails only where a type is narrower than it.
    let config: P::Config =
        serde_json::from_value(config).map_err(|error| Invalid::new(error.to_string()))?;
    P::build(config, cx)
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
    fn the_list_is_sorted_and_without_doubles() {
        for pair in ROWS.windows(2) {
            assert!(pair[0].priority > pair[1].priority, "{} before {}", pair[0].name, pair[1].name);
        }
        let mut names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
    }

    #[test]
    fn every_plugin_states_its_order_as_apisix_has_it() {
        for row in ROWS.iter().filter(|row| !apisix_plugins::OWN.contains(&row.name)) {
            let (_, priority) = apisix_plugins::APISIX
                .iter()
                .find(|(name, _)| *name == row.name)
                .unwrap_or_else(|| panic!("{} is in no list of APISIX's", row.name));
            assert_eq!(row.priority, *priority, "{}", row.name);
        }
    }
}
