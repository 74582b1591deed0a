//! Settings for tests. The defaults of the gateway are those of its boot file.

use std::sync::Arc;
use std::time::Duration;

use snapshot::certs::CommonTls;
use wire::h1::decode::Limits;
use wire::target::{Doubtful, PathRules};

use crate::pool::Pool;
use crate::settings::{Http2, Http3, ProxyProtocol, Settings, Streams};

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

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: Vec::new(),
            reuse_port: false,
            queue_limit: Duration::from_millis(250),
            max_connections: 65_536,
            // Which doubtful paths are refused is decided by the route.
            request: Limits {
                path: PathRules { refused: Doubtful::NONE, ..PathRules::default() },
                ..Limits::default()
            },
            response: Limits { fields: 1000, ..Limits::default() },
            header_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            tls: CommonTls::default(),
            body_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(60),
            keepalive_requests: 10_000,
            max_body: 0,
            max_hops: 16,
            held_bodies: 256 << 20,
            stream_windows: 256 << 20,
            upstream_windows: 256 << 20,
            send_windows: 64 << 20,
            bounds: sdk::Bounds::DEFAULT,
            half_close_timeout: Duration::from_secs(2),
            plugin_wait_timeout: Duration::from_secs(600),
            pool: Pool::default(),
            gathers: true,
            linger_bytes: 64 << 10,
            linger_timeout: Duration::from_secs(1),
            idle_grace: Duration::from_secs(1),
            attempt_delay: Duration::from_millis(250),
            drain_timeout: Duration::from_secs(240),
            max_idle_upstreams: 4096,
            max_fetches: 1024,
            max_fetches_per_target: 64,
            server: "APISIX/3.18.0".to_owned(),
            show_upstream_status: false,
            explain: None,
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
