//! Settings for tests. The defaults of the gateway are those of its boot file.

use std::sync::Arc;
use std::time::Duration;

use snapshot::certs::CommonTls;
use wire::h1::decode::Limits;
use wire::target::{Doubtful, PathRules};

use crate::pool::Pool;
use crate::settings::{self, Budgets, Http2, Http3, ProxyProtocol, Settings, Streams, Timeouts};

impl Default for ProxyProtocol {
    fn default() -> ProxyProtocol {
        ProxyProtocol { trusted: None, timeout: Duration::from_secs(10) }
    }
}

impl Default for Streams {
    fn default() -> Streams {
        Streams {
            connect_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(600),
            preread_timeout: Duration::from_secs(30),
            real_ip_from: None,
            access_log: None,
            udp: Vec::new(),
            udp_idle_timeout: Duration::from_secs(60),
            max_udp_sessions: 16_384,
            udp_queue: 256 << 10,
        }
    }
}

impl Default for Http2 {
    fn default() -> Http2 {
        Http2 {
            max_streams: 128,
            stream_window: 64 << 10,
            send_buffer: 32 << 10,
            control_frames: 1000,
            max_stream_errors: 100,
            unread: 4 << 20,
            max_age: Duration::from_secs(3600),
            upstream_streams: 100,
            stall_timeout: Duration::from_secs(10),
        }
    }
}

impl Default for Http3 {
    fn default() -> Http3 {
        Http3 {
            max_streams: 128,
            stream_window: 64 << 10,
            send_window: 1 << 20,
            idle_timeout: Duration::from_secs(60),
            max_handshakes: 1000,
            retry_from: 100,
            alt_svc: "h3=\":$server_port\"; ma=86400".to_owned(),
        }
    }
}

impl Settings {
    /// The settings of tests with these changes.
    pub fn with(change: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: Vec::new(),
            timeouts: Timeouts {
                queue: Duration::from_millis(250),
                header: Duration::from_secs(10),
                handshake: Duration::from_secs(10),
                body: Duration::from_secs(60),
                send: Duration::from_secs(10),
                keepalive: Duration::from_secs(60),
                half_close: Duration::from_secs(2),
                plugin_wait: Duration::from_secs(600),
                linger: Duration::from_secs(1),
                idle_grace: Duration::from_secs(1),
                attempt_delay: Duration::from_millis(250),
                drain: Duration::from_secs(240),
            },
            limits: settings::Limits {
                connections: 65_536,
                keepalive_requests: 10_000,
                body: 0,
                hops: 16,
                linger_bytes: 64 << 10,
                idle_upstreams: 4096,
                fetches: 1024,
                fetches_per_target: 64,
                plugin_connections: 1024,
                resolved_names: 1024,
            },
            budgets: Budgets {
                held_bodies: 256 << 20,
                stream_windows: 256 << 20,
                upstream_windows: 256 << 20,
                send_windows: 64 << 20,
            },
            reuse_port: false,
            // Which doubtful paths are refused is decided by the route.
            request: Limits {
                path: PathRules { refused: Doubtful::NONE, ..PathRules::default() },
                ..Limits::default()
            },
            response: Limits { fields: 1000, ..Limits::default() },
            tls: CommonTls::default(),
            resolver: None,
            bounds: sdk::Bounds::DEFAULT,
            pool: Pool::default(),
            file_pool: Pool::default(),
            gathers: true,
            server: "APISIX/3.18.0".to_owned(),
            show_upstream_status: false,
            explain: None,
            taps: Arc::default(),
            streams: Streams::default(),
            proxy_protocol: ProxyProtocol::default(),
            real_ip: None,
            trusted: None,
            http2: Http2::default(),
            http3: Http3::default(),
            handoff: None,
            proofs: None,
            access_log: None,
            on_fault: Arc::new(|_| {}),
            on_notice: Arc::new(|_, _| {}),
        }
    }
}
