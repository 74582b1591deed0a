//! Directives that no part of the importer used: each becomes a finding.

use std::collections::HashMap;

use model::Key;

use super::directive::{Block, Directive};
use super::parser::is_types;
use super::report::Report;
use crate::{Finding, Severity};

/// Settings of locations that are looked at only where they have an effect.
pub(super) const LOCATION_SETTINGS: &[&str] = &[
    "add_header",
    "alias",
    "allow",
    "auth_basic",
    "auth_basic_user_file",
    "auth_request",
    "auth_request_set",
    "autoindex",
    "default_type",
    "deny",
    "expires",
    "grpc_connect_timeout",
    "grpc_hide_header",
    "grpc_next_upstream",
    "grpc_next_upstream_timeout",
    "grpc_next_upstream_tries",
    "grpc_read_timeout",
    "grpc_send_timeout",
    "grpc_set_header",
    "grpc_ssl_certificate",
    "grpc_ssl_certificate_key",
    "grpc_ssl_name",
    "grpc_ssl_server_name",
    "grpc_ssl_trusted_certificate",
    "grpc_ssl_verify",
    "index",
    "limit_conn",
    "limit_conn_status",
    "limit_req",
    "limit_req_status",
    "proxy_connect_timeout",
    "proxy_hide_header",
    "proxy_method",
    "proxy_next_upstream",
    "proxy_next_upstream_timeout",
    "proxy_next_upstream_tries",
    "proxy_read_timeout",
    "proxy_send_timeout",
    "proxy_set_header",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "proxy_ssl_name",
    "proxy_ssl_server_name",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_verify",
    "real_ip_header",
    "real_ip_recursive",
    "root",
    "satisfy",
    "set_real_ip_from",
    "try_files",
];

/// Beginnings of names of directives that decide which requests are let in.
const GUARDS: &[&str] = &[
    "access_by_lua",
    "auth_",
    "allow",
    "deny",
    "js_access",
    "limit_",
    "modsecurity",
    "naxsi",
    "oidc_",
    "secure_link",
    "session_",
    "ssl_verify_client",
    "ssl_crl",
    "valid_referers",
    "waf",
    "internal",
    "satisfy",
];

/// The effect of a directive that has no counterpart. `None` for one that is unknown here.
fn known(directive: &Directive) -> Option<(Severity, &'static str)> {
    let own = "the gateway has its own setting in config.yaml";
    let no_need = "the gateway needs no such setting";
    Some(match directive.name.as_str() {
        "worker_processes"
        | "worker_connections"
        | "worker_rlimit_nofile"
        | "worker_cpu_affinity"
        | "worker_priority"
        | "worker_shutdown_timeout"
        | "worker_aio_requests"
        | "user"
        | "pid"
        | "daemon"
        | "master_process"
        | "error_log"
        | "env"
        | "pcre_jit"
        | "multi_accept"
        | "use"
        | "accept_mutex"
        | "accept_mutex_delay"
        | "events"
        | "lock_file"
        | "thread_pool"
        | "timer_resolution"
        | "worker_rlimit_core"
        | "working_directory"
        | "debug_connection"
        | "ssl_engine"
        | "load_module" => (Severity::Cosmetic, own),
        "access_log"
        | "log_format"
        | "log_not_found"
        | "log_subrequest"
        | "open_log_file_cache"
        | "rewrite_log" => (Severity::Cosmetic, "the access log of the gateway is set up in config.yaml"),
        "sendfile"
        | "sendfile_max_chunk"
        | "tcp_nopush"
        | "tcp_nodelay"
        | "aio"
        | "aio_write"
        | "directio"
        | "directio_alignment"
        | "output_buffers"
        | "postpone_output"
        | "open_file_cache"
        | "open_file_cache_valid"
        | "open_file_cache_min_uses"
        | "open_file_cache_errors"
        | "read_ahead"
        | "types_hash_max_size"
        | "types_hash_bucket_size"
        | "server_names_hash_max_size"
        | "server_names_hash_bucket_size"
        | "variables_hash_max_size"
        | "variables_hash_bucket_size"
        | "map_hash_max_size"
        | "map_hash_bucket_size"
        | "proxy_headers_hash_max_size"
        | "proxy_headers_hash_bucket_size"
        | "connection_pool_size"
        | "request_pool_size"
        | "client_body_buffer_size"
        | "client_body_temp_path"
        | "client_body_in_file_only"
        | "client_body_in_single_buffer"
        | "client_header_buffer_size"
        | "large_client_header_buffers"
        | "proxy_buffering"
        | "proxy_buffers"
        | "proxy_buffer_size"
        | "proxy_busy_buffers_size"
        | "proxy_request_buffering"
        | "proxy_max_temp_file_size"
        | "proxy_temp_file_write_size"
        | "proxy_temp_path"
        | "proxy_http_version"
        | "proxy_socket_keepalive"
        | "proxy_bind"
        | "grpc_buffer_size"
        | "grpc_socket_keepalive"
        | "fastcgi_buffers"
        | "fastcgi_buffer_size"
        | "fastcgi_busy_buffers_size"
        | "fastcgi_temp_file_write_size"
        | "fastcgi_read_timeout"
        | "fastcgi_send_timeout"
        | "fastcgi_connect_timeout"
        | "fastcgi_param"
        | "fastcgi_index"
        | "fastcgi_split_path_info"
        | "fastcgi_cache_path"
        | "uwsgi_param"
        | "uwsgi_read_timeout"
        | "scgi_param"
        | "gzip_buffers"
        | "gzip_disable"
        | "gzip_static"
        | "gunzip"
        | "http2_max_field_size"
        | "http2_max_header_size"
        | "http2_recv_buffer_size"
        | "http2_chunk_size"
        | "http2_push_preload"
        | "preread_buffer_size"
        | "proxy_cache_path"
        | "lingering_close"
        | "lingering_time"
        | "lingering_timeout"
        | "reset_timedout_connection"
        | "msie_padding"
        | "msie_refresh"
        | "etag"
        | "if_modified_since"
        | "chunked_transfer_encoding"
        | "recursive_error_pages"
        | "variables_hash"
        | "limit_req_log_level"
        | "limit_conn_log_level"
        | "proxy_pass_header"
        | "grpc_pass_header"
        | "subrequest_output_buffer_size"
        | "lua_package_path"
        | "lua_package_cpath"
        | "lua_shared_dict"
        | "lua_code_cache" => (Severity::Cosmetic, no_need),
        "resolver" | "resolver_timeout" => {
            (Severity::Cosmetic, "names are resolved by the resolver of config.yaml")
        }
        "server_tokens" => (Severity::Cosmetic, "the gateway's header `Server` is set up in config.yaml"),
        "keepalive_timeout"
        | "keepalive_requests"
        | "keepalive_time"
        | "keepalive_disable"
        | "client_header_timeout"
        | "client_body_timeout"
        | "send_timeout"
        | "http2_max_concurrent_streams"
        | "http2_max_requests"
        | "http2_idle_timeout"
        | "http2_recv_timeout" => (Severity::Cosmetic, own),
        "ssl_session_cache"
        | "ssl_session_timeout"
        | "ssl_session_tickets"
        | "ssl_session_ticket_key"
        | "ssl_prefer_server_ciphers"
        | "ssl_ciphers"
        | "ssl_ecdh_curve"
        | "ssl_dhparam"
        | "ssl_buffer_size"
        | "ssl_conf_command"
        | "ssl_early_data"
        | "ssl_handshake_timeout" => (Severity::Cosmetic, "the gateway's own settings of TLS count"),
        "ssl_stapling"
        | "ssl_stapling_verify"
        | "ssl_trusted_certificate"
        | "ssl_stapling_file"
        | "ssl_stapling_responder" => (Severity::Behaviour, "responses of OCSP are not stapled"),
        "error_page" | "proxy_intercept_errors" | "fastcgi_intercept_errors" => {
            (Severity::Behaviour, "pages for errors are the gateway's own")
        }
        "proxy_redirect" if directive.arg(0) == "off" => {
            (Severity::Cosmetic, "redirects of the upstream pass unchanged")
        }
        "proxy_redirect" => (Severity::Behaviour, "redirects of the upstream pass unchanged"),
        "proxy_cookie_path" | "proxy_cookie_domain" | "proxy_cookie_flags" => {
            (Severity::Behaviour, "cookies of the upstream pass unchanged")
        }
        "sub_filter" | "sub_filter_once" | "sub_filter_types" | "sub_filter_last_modified" => {
            (Severity::Behaviour, "bodies of responses pass unchanged")
        }
        "merge_slashes" => match directive.flag() {
            Some(true) => (Severity::Cosmetic, "the gateway merges slashes"),
            _ => (Severity::Behaviour, "the gateway merges slashes, unless config.yaml says otherwise"),
        },
        "ignore_invalid_headers" => (Severity::Behaviour, "headers that HTTP does not allow are refused"),
        "absolute_redirect" | "port_in_redirect" | "server_name_in_redirect" => {
            (Severity::Behaviour, "redirects name the host of the request")
        }
        "proxy_pass_request_body" | "proxy_pass_request_headers" | "proxy_set_body" => {
            (Severity::Behaviour, "requests pass with their headers and bodies")
        }
        "proxy_ignore_client_abort"
        | "proxy_force_ranges"
        | "proxy_limit_rate"
        | "proxy_store"
        | "proxy_store_access" => (Severity::Behaviour, "not carried over"),
        "limit_rate" | "limit_rate_after" => (Severity::Behaviour, "the rate of responses is not limited"),
        "charset" | "charset_types" | "source_charset" | "override_charset" => {
            (Severity::Behaviour, "no charset is added to media types")
        }
        "types" => (Severity::Behaviour, "media types by ending are the gateway's own"),
        "mirror" | "mirror_request_body" => (Severity::Behaviour, "requests are not mirrored"),
        "ssl_protocols" => (Severity::Cosmetic, "the gateway's own settings of TLS count"),
        "quic_retry" | "http3" | "quic_gso" | "http3_hq" => {
            (Severity::Behaviour, "HTTP/3 is set up in config.yaml")
        }
        "limit_except" => (Severity::Guard, "the limit of methods is not carried over"),
        "mail" => (Severity::Behaviour, "proxies of mail are not carried over"),
        _ => return None,
    })
}

/// Reports every directive that was not used.
pub(super) fn report(top: &Block, routes_of: &HashMap<usize, Vec<Key>>, report: &mut Report) {
    walk(top, &[], routes_of, report);
}

fn walk(block: &Block, routes: &[Key], routes_of: &HashMap<usize, Vec<Key>>, report: &mut Report) {
    let own = routes_of.get(&block.id);
    let routes = own.map_or(routes, |own| own);
    for directive in &block.directives {
        if !directive.is_used() {
            unused(directive, routes, report);
        } else if let Some(inner) = &directive.block {
            walk(inner, routes, routes_of, report);
        }
    }
}

fn unused(directive: &Directive, routes: &[Key], report: &mut Report) {
    if directive.name == "events" {
        let unknown = directive.children().iter().filter(|inner| known(inner).is_none());
        unknown.for_each(|inner| unused(inner, routes, report));
    }
    // Values of `off` are the gateway's behaviour.
    let is_off = directive.args.len() == 1 && directive.flag() == Some(false);
    let (severity, effect) = match (&directive.unreadable, known(directive)) {
        (Some(_), _) if directive.arg(0).ends_with("options-ssl-nginx.conf") => {
            (Severity::Cosmetic, "the gateway's own settings of TLS count".to_owned())
        }
        // Such a folder only loads modules.
        (Some(error), _) if directive.arg(0).contains("/modules") => {
            (Severity::Cosmetic, format!("not read: {error}"))
        }
        // The file may hold rules of access.
        (Some(error), _) => (Severity::Guard, format!("not read: {error}")),
        (None, _) if directive.name == "include" && is_types(directive.arg(0)) => {
            (Severity::Cosmetic, "the gateway knows the media types".to_owned())
        }
        (None, Some((severity, effect))) => {
            let severity = match directive.name.as_str() {
                "proxy_intercept_errors"
                | "limit_rate"
                | "charset"
                | "ssl_stapling"
                | "ssl_stapling_verify"
                | "sub_filter_once"
                    if is_off =>
                {
                    Severity::Cosmetic
                }
                _ => severity,
            };
            (severity, effect.to_owned())
        }
        (None, None) => {
            let guards = GUARDS.iter().any(|start| directive.name.starts_with(start)) && !is_off;
            let severity = if guards { Severity::Guard } else { Severity::Behaviour };
            (severity, "not carried over: the importer does not know it".to_owned())
        }
    };
    report.push(Finding {
        place: directive.place.clone(),
        severity,
        construct: directive.text(),
        effect,
        hint: None,
        resources: routes.to_vec(),
    });
}
