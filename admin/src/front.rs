//! The pages at `/` of the Admin API and the control API: static lists of the endpoints.

use bytes::Bytes;
use http::{Response, StatusCode};

use crate::answer;

/// Needs no key: nothing in it depends on this gateway.
const ADMIN: &str = r#"{
  "api": "Admin API; requests need a key in X-API-KEY unless admin_key_required is false",
  "endpoints": {
    "/apisix/admin/{kind}": "resources: routes, services, upstreams, consumers, ssls, global_rules, plugin_configs, consumer_groups, stream_routes, plugin_metadata, secrets, protos, scripts",
    "/apisix/admin/{kind}/{id}": "one resource: GET, PUT, PATCH, DELETE",
    "/apisix/admin/configs": "all resources at once: GET, PUT",
    "/apisix/admin/plugins/list": "the plugins",
    "/apisix/admin/revisions": "earlier writes, to compare and roll back",
    "/apisix/admin/explain?path=/": "the route that takes a request, and why",
    "/apisix/admin/analysis": "likely mistakes in the configuration",
    "/apisix/admin/live": "the traffic, as one event a second",
    "/apisix/admin/tap?status=5xx": "single requests, as events",
    "/ui/": "the dashboard",
    "/apisix/admin/openapi.json": "all of this API"
  }
}
"#;

const CONTROL: &str = r#"{
  "api": "control API",
  "endpoints": {
    "/v1/status": "the process, its workers and the published configuration",
    "/v1/rejected": "resources that are not served as written",
    "/v1/analysis": "likely mistakes in the configuration",
    "/v1/explain?path=/": "the route that takes a request, and why",
    "/v1/live": "the traffic, as one event a second",
    "/v1/tap?status=5xx": "single requests, as events",
    "/v1/schema": "schemas of plugins and resources",
    "/v1/healthcheck": "health of upstream nodes",
    "/v1/routes": "the stored routes; likewise /v1/services, /v1/upstreams and /v1/plugin_metadatas",
    "/v1/discovery/{type}/dump": "nodes known from a service registry"
  }
}
"#;

pub(crate) fn of_admin() -> Response<Bytes> {
    answer::text(StatusCode::OK, ADMIN)
}

pub(crate) fn of_control() -> Response<Bytes> {
    answer::text(StatusCode::OK, CONTROL)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    #[test]
    fn the_lists_are_json() {
        for page in [super::ADMIN, super::CONTROL] {
            assert!(serde_json::from_str::<Value>(page).unwrap()["endpoints"].is_object());
        }
    }
}
