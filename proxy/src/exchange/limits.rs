//! The settings behind failures at a bound.

use wire::h1::Refusal;

use super::fault::{BodyLimit, FaultKind, Flood};
use crate::settings::Settings;

impl FaultKind {
    /// The setting whose bound was exceeded, by its name in `config.yaml`, and the bound.
    pub(crate) fn limit(self, settings: &Settings) -> Option<(&'static str, u64)> {
        let (name, bound) = match self {
            FaultKind::BadRequest(Refusal::TooManyFields) => {
                ("nginx_config.http.max_header_fields", settings.request.fields)
            }
            FaultKind::BadRequest(Refusal::HeadTooLarge) => {
                ("nginx_config.http.large_client_header_buffers", settings.request.head)
            }
            FaultKind::BodyTooLarge(BodyLimit::Client) => {
                return Some(("nginx_config.http.client_max_body_size", settings.limits.body));
            }
            FaultKind::BodyTooLarge(BodyLimit::Route(bytes)) => {
                return Some(("client-control.max_body_size", bytes));
            }
            FaultKind::BadResponse(Refusal::TooManyFields) => {
                ("nginx_config.http.max_response_header_fields", settings.response.fields)
            }
            FaultKind::BadResponse(Refusal::HeadTooLarge) => {
                ("nginx_config.http.proxy_buffer_size", settings.response.head)
            }
            FaultKind::HeldTooMuch | FaultKind::BodyTooLarge(BodyLimit::Held) => {
                ("nginx_config.http.held_bodies", settings.budgets.held_bodies)
            }
            FaultKind::ClientStalled => {
                ("nginx_config.http.upstream.http2_windows", settings.budgets.upstream_windows)
            }
            FaultKind::LoopDetected => ("nginx_config.http.max_hops", usize::from(settings.limits.hops)),
            FaultKind::Flood(flood) => flood.limit(settings),
            _ => return None,
        };
        Some((name, bound as u64))
    }
}

impl Flood {
    fn limit(self, settings: &Settings) -> (&'static str, usize) {
        let http2 = &settings.http2;
        match self {
            Flood::Frames => ("nginx_config.http.http2_control_frames", http2.control_frames as usize),
            Flood::Unread => ("nginx_config.http.http2_unread", http2.unread),
            Flood::AllUnread => ("nginx_config.http.stream_windows", settings.budgets.stream_windows),
            Flood::StreamErrors => {
                ("nginx_config.http.http2_stream_errors", http2.max_stream_errors as usize)
            }
            Flood::HeaderList => ("nginx_config.http.large_client_header_buffers", settings.request.head),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_at_a_bound_names_its_setting() {
        let mut settings = Settings::with(|settings| {
            settings.budgets.held_bodies = 7;
            settings.budgets.upstream_windows = 10;
            settings.limits.body = 11;
        });
        (settings.response.fields, settings.response.head) = (8, 9);
        for (kind, limit) in [
            (FaultKind::BadResponse(Refusal::TooManyFields), Some(("max_response_header_fields", 8))),
            (FaultKind::BadResponse(Refusal::HeadTooLarge), Some(("proxy_buffer_size", 9))),
            (FaultKind::HeldTooMuch, Some(("held_bodies", 7))),
            (FaultKind::BodyTooLarge(BodyLimit::Client), Some(("client_max_body_size", 11))),
            (FaultKind::BodyTooLarge(BodyLimit::Held), Some(("held_bodies", 7))),
            (FaultKind::BodyTooLarge(BodyLimit::Handoff), None),
            (FaultKind::ClientStalled, Some(("upstream.http2_windows", 10))),
            (FaultKind::BadResponse(Refusal::StatusLine), None),
        ] {
            let named = kind.limit(&settings);
            let named = named.map(|(name, bound)| (name.trim_start_matches("nginx_config.http."), bound));
            assert_eq!(named, limit, "{kind:?}");
        }
    }
}
