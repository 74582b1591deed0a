//! The plugins of streams: a file each, and the list of them.
//!
//! They implement the contract that those of routes do, with the phases `preread` and `log`. Some have the
//! name and the settings of a plugin of routes and are the same inside; they are listed apart, as in APISIX,
//! since a list of their own (`stream_plugins`) says which may be used.

pub mod ip_restriction;
pub mod limit_conn;
pub mod mqtt_proxy;
pub mod prometheus;
pub mod syslog;
pub mod traffic_split;

use model::Invalid;
use sdk::instance::{Factory, Linked};

macro_rules! plugins {
    ($($module:ident::$kind:ident,)*) => {
        pub(crate) static ROWS: &[&dyn Factory] = &[$(&Linked::<$module::$kind>::NEW,)*];
    };
}

// From high to low priority.
plugins! {
    ip_restriction::IpRestriction,
    limit_conn::LimitConn,
    mqtt_proxy::MqttProxy,
    traffic_split::TrafficSplit,
    prometheus::Prometheus,
    syslog::Syslog,
}

/// The names of all plugins of streams, by priority from high to low.
pub fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name()).collect()
}

pub(crate) fn unknown(name: &str) -> Invalid {
    let invalid = Invalid::new(format!("unknown plugin [{name}]")).got(name);
    match model::invalid::nearest(name, names()) {
        Some(near) => invalid.hint(format!("did you mean `{near}`?")),
        None => invalid.hint(format!("the plugins of streams are {}", names().join(", "))),
    }
}

/// As APISIX words what is wrong with the settings of one.
pub(crate) fn blame(name: &str, invalid: Invalid) -> Invalid {
    invalid.said(&format!("failed to check the configuration of stream plugin [{name}]: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_and_without_doubles() {
        for pair in ROWS.windows(2) {
            assert!(pair[0].priority() > pair[1].priority(), "{} before {}", pair[0].name(), pair[1].name());
        }
        for row in ROWS {
            let stream = sdk::Phases::PREREAD | sdk::Phases::LOG;
            assert_eq!(row.phases() | stream, stream, "{}", row.name());
        }
    }

    /// The list of names in `model` has exactly the stream plugins that are built.
    #[test]
    fn there_are_those_of_apisix_and_no_others() {
        let known: Vec<&str> =
            model::apisix_plugins::Subsystem::Stream.plugins().iter().map(|known| known.name).collect();
        assert_eq!(names(), known);
    }

    #[test]
    fn each_has_a_page() {
        let pages =
            std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/pages/stream")).expect("the folder");
        let there = pages.map(|page| page.expect("an entry").file_name().to_string_lossy().into_owned());
        let mut wanted: Vec<String> = names().iter().map(|name| format!("{name}.md")).collect();
        wanted.sort_unstable();
        let mut there: Vec<String> = there.collect();
        there.sort_unstable();
        assert_eq!(there, wanted);
    }
}
