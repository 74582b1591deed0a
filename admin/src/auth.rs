//! Authentication of Admin API clients: by address, then by key.
//!
//! Both are checked before the path is looked at. The address is that of the
//! connection; no header can change it.

use std::net::IpAddr;

use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use percent_encoding::percent_decode_str;
use subtle::{Choice, ConstantTimeEq};

use crate::answer::{self, ErrorAnswer};
use crate::author::KeyName;
use crate::config::{AdminKey, AdminRole, Config};
use crate::hosts;
use crate::request::pairs;
use crate::session::User;

/// Checks the address of a client.
///
/// # Errors
/// 403 unless `allow_admin` holds the address.
pub(crate) fn check_address(config: &Config, peer: IpAddr) -> Result<(), ErrorAnswer> {
    match is_allowed(config, peer) {
        true => Ok(()),
        false => {
            let peer = peer.to_canonical();
            Err(ErrorAnswer::new(
                StatusCode::FORBIDDEN,
                format!("{peer} is not in deployment.admin.allow_admin"),
            ))
        }
    }
}

/// Returns whether `allow_admin` holds the address.
pub(crate) fn is_allowed(config: &Config, peer: IpAddr) -> bool {
    // An IPv4 client of a dual-stack socket shows as ::ffff:127.0.0.1.
    let peer = peer.to_canonical();
    config.allow.iter().any(|network| network.contains(&peer))
}

/// Checks the key of a request and returns its name and role.
///
/// # Errors
/// 401 unless the request carries a key whose role allows the method, and the reason for the log. Without
/// required keys, 403 for requests from web pages.
pub(crate) fn check_key(
    config: &Config,
    head: &Parts,
) -> Result<(KeyName, AdminRole), (ErrorAnswer, &'static str)> {
    if !config.key_required {
        return check_page(config, head).map(|()| (KeyName::NotAsked, AdminRole::Admin));
    }
    let (token, in_cookie) = token_of(head).ok_or_else(|| refused("missing apikey"))?;
    if in_cookie && !is_same_origin(head) {
        return Err(refused("a key in a cookie is not accepted from pages of another origin"));
    }
    let (key, role) = user_of(config, &token).ok_or_else(|| refused(WRONG_KEY))?;
    check_role(role, head)?;
    Ok((key, role))
}

fn check_role(role: AdminRole, head: &Parts) -> Result<(), (ErrorAnswer, &'static str)> {
    if role == AdminRole::Viewer && head.method != Method::GET {
        return Err(refused("invalid method for role viewer"));
    }
    if role == AdminRole::Viewer && shows_history(head) {
        return Err(refused("the history is for the role admin: it holds secrets that were replaced"));
    }
    Ok(())
}

/// Checks a request of a session of the dashboard and returns the name and role of its key.
///
/// # Errors
/// 403 for a change without the session's token or from another origin; 401 if the role does not allow the method.
pub(crate) fn check_session(
    config: &Config,
    user: &User,
    head: &Parts,
) -> Result<(KeyName, AdminRole), (ErrorAnswer, &'static str)> {
    let is_read = matches!(head.method, Method::GET | Method::HEAD);
    if !is_same_origin(head) || !is_read && !user.has_token(&head.headers) {
        let reason = "the request is not of the dashboard that has this session";
        return Err((ErrorAnswer::new(StatusCode::FORBIDDEN, reason), "a session without its token"));
    }
    if !config.key_required {
        hosts::check(&config.hosts, &head.uri, &head.headers)
            .map_err(|refusal| (refusal, "its Host is not known (deployment.admin.hosts)"))?;
    }
    check_role(user.role, head)?;
    Ok((user.key.clone(), user.role))
}

/// Whether a request brings a key of its own, which goes before a session.
pub(crate) fn has_key(head: &Parts) -> bool {
    token_of(head).is_some()
}

/// Returns the name and the role of a key; without required keys, any key is an admin's.
pub(crate) fn user_of(config: &Config, key: &[u8]) -> Option<(KeyName, AdminRole)> {
    if !config.key_required {
        return Some((KeyName::NotAsked, AdminRole::Admin));
    }
    key_of(config, key).map(|key| (KeyName::Named(key.name.clone()), key.role))
}

/// Returns whether an answer would show past configuration. `revisions/unconfirmed` does not.
fn shows_history(head: &Parts) -> bool {
    let path = head.uri.path().strip_prefix("/apisix/admin/").unwrap_or_default().trim_end_matches('/');
    // An explanation by a past revision shows parts of it.
    let of_the_past = || {
        let query = head.uri.query().unwrap_or_default();
        pairs(query).is_none_or(|pairs| pairs.iter().any(|(name, _)| name == "revision"))
    };
    match path.split('/').next() {
        Some("revisions") => path != "revisions/unconfirmed",
        Some("explain") => of_the_past(),
        _ => false,
    }
}

/// Refuses requests from web pages where no key is required: a page open on an allowed machine has an
/// allowed address. Browsers mark its requests with `Origin`.
fn check_page(config: &Config, head: &Parts) -> Result<(), (ErrorAnswer, &'static str)> {
    if head.headers.contains_key(header::ORIGIN) || is_of_other_page(&head.headers) {
        let reason = "requests of web pages are refused while deployment.admin.admin_key_required is false";
        return Err((ErrorAnswer::new(StatusCode::FORBIDDEN, reason), "it comes from a web page"));
    }
    hosts::check(&config.hosts, &head.uri, &head.headers)
        .map_err(|refusal| (refusal, "its Host is not known (deployment.admin.hosts)"))
}

/// Returns the key of a request, and whether it is from the cookie, which a browser adds to requests of any page.
///
/// The key is the first of query `api_key`, header `X-API-KEY` (with underscores, too, as NGINX's variable
/// takes it), cookie `x_api_key`.
fn token_of(head: &Parts) -> Option<(Vec<u8>, bool)> {
    let query = head.uri.query().unwrap_or_default();
    if let Some(value) = query.split('&').find_map(|pair| pair.strip_prefix("api_key=")) {
        return Some((percent_decode_str(value).collect(), false));
    }
    if let Some(value) = head.headers.get("x-api-key").or_else(|| head.headers.get("x_api_key")) {
        return Some((value.as_bytes().to_owned(), false));
    }
    let cookies = head.headers.get_all(header::COOKIE).iter();
    cookies
        .flat_map(|cookie| cookie.as_bytes().split(|byte| *byte == b';'))
        .find_map(|pair| pair.trim_ascii().strip_prefix(b"x_api_key="))
        .map(|key| (key.to_owned(), true))
}

/// Returns whether a browser sends the request for a page of another origin, other than by following a link.
///
/// An image, a frame or `fetch` without CORS has no `Origin`. The page cannot read the answer, but could hold streams
/// open and keep the gateway busy. Browsers send these fields over HTTPS and to this machine.
pub(crate) fn is_of_other_page(headers: &HeaderMap) -> bool {
    let is = |name: &str, values: &[&str]| {
        headers.get(name).is_some_and(|field| values.iter().any(|value| field == value))
    };
    let follows_link = is("sec-fetch-mode", &["navigate"]) && is("sec-fetch-dest", &["document"]);
    is("sec-fetch-site", &["cross-site", "same-site"]) && !follows_link
}

/// Returns whether the request has no `Origin`, or that of this server, and is of no other page.
pub(crate) fn is_same_origin(head: &Parts) -> bool {
    if is_of_other_page(&head.headers) {
        return false;
    }
    let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| head.uri.authority().map(|authority| authority.as_str()));
    head.headers.get_all(header::ORIGIN).iter().all(|origin| {
        let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        authority.zip(host).is_some_and(|((_, authority), host)| authority.eq_ignore_ascii_case(host))
    })
}

/// Finds a key by comparing with every one, in a time that reveals only their lengths.
fn key_of<'a>(config: &'a Config, token: &[u8]) -> Option<&'a AdminKey> {
    let mut found = None;
    for admin in &config.keys {
        // An empty key never matches, even if one got this far.
        let nonempty = Choice::from(u8::from(!admin.key.is_empty()));
        if bool::from(admin.key.as_bytes().ct_eq(token) & nonempty) && found.is_none() {
            found = Some(admin);
        }
    }
    found
}

/// The reason for refusing a key that is not configured.
pub(crate) const WRONG_KEY: &str = "wrong apikey";

/// Returns the 429 for a client that has sent too many wrong keys.
pub(crate) fn too_many(seconds: u64) -> ErrorAnswer {
    let body = serde_json::json!({
        "error_msg": "failed to check token",
        "description": "too many wrong apikeys, try again later",
    });
    let mut response = answer::json(StatusCode::TOO_MANY_REQUESTS, &body);
    response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    ErrorAnswer::response(response)
}

fn refused(why: &'static str) -> (ErrorAnswer, &'static str) {
    let body = serde_json::json!({ "error_msg": "failed to check token", "description": why });
    (ErrorAnswer::response(answer::json(StatusCode::UNAUTHORIZED, &body)), why)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn config() -> Config {
        let key = |name: &str, key: &str, role| AdminKey { name: name.into(), key: key.into(), role };
        Config {
            keys: vec![
                key("a", "secret", AdminRole::Admin),
                key("v", "look", AdminRole::Viewer),
                key("e", "", AdminRole::Admin),
            ],
            ..Config::default()
        }
    }

    fn check(method: Method, uri: &str, header: Option<(&str, &str)>) -> Result<(), String> {
        let mut request = Request::builder().method(method).uri(uri);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        check_key(&config(), &head).map(drop).map_err(|(refusal, _)| {
            let response = refusal.into_response();
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
            let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(body["error_msg"], "failed to check token");
            body["description"].as_str().unwrap().to_owned()
        })
    }

    #[test]
    fn the_key_is_found_in_three_places() {
        let (head, ()) = Request::get("/").header("x-api-key", "look").body(()).unwrap().into_parts();
        assert_eq!(check_key(&config(), &head).unwrap(), (KeyName::Named("v".to_owned()), AdminRole::Viewer));
        assert_eq!(check(Method::PUT, "/?a=b&api_key=secret", None), Ok(()));
        assert_eq!(check(Method::PUT, "/?api_key=s%65cret", None), Ok(()));
        assert_eq!(check(Method::PUT, "/", Some(("x-api-key", "secret"))), Ok(()));
        assert_eq!(check(Method::PUT, "/", Some(("x_api_key", "secret"))), Ok(()));
        assert_eq!(check(Method::PUT, "/", Some(("cookie", "a=b; x_api_key=secret"))), Ok(()));
        // The first place decides.
        assert_eq!(
            check(Method::PUT, "/?api_key=no", Some(("x-api-key", "secret"))),
            Err("wrong apikey".into())
        );
    }

    #[test]
    fn a_key_in_a_cookie_is_for_pages_of_the_same_origin() {
        for (name, origin, is_good) in [
            ("cookie", None, true),
            ("cookie", Some("http://localhost:9180"), true),
            ("cookie", Some("https://LOCALHOST:9180"), true),
            ("cookie", Some("http://localhost"), false),
            ("cookie", Some("http://evil.test"), false),
            ("cookie", Some("null"), false),
            ("x-api-key", Some("http://evil.test"), true),
        ] {
            let value = if name == "cookie" { "x_api_key=secret" } else { "secret" };
            let mut request = Request::put("/").header("host", "localhost:9180").header(name, value);
            if let Some(origin) = origin {
                request = request.header("origin", origin);
            }
            let (head, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(check_key(&config(), &head).is_ok(), is_good, "{name} {origin:?}");
        }
    }

    #[test]
    fn others_are_refused() {
        let missing = Err("missing apikey".to_owned());
        let wrong = Err("wrong apikey".to_owned());
        assert_eq!(check(Method::GET, "/", None), missing);
        for key in ["secre", "secrets", "SECRET", "edd1c9f034335f136f87ad84b625c8f1", ""] {
            assert_eq!(check(Method::GET, "/", Some(("x-api-key", key))), wrong, "{key}");
        }
        assert_eq!(check(Method::GET, "/?api_key=", None), wrong);
        assert_eq!(check(Method::GET, "/", Some(("x-api-key", "look"))), Ok(()));
        for method in [Method::PUT, Method::POST, Method::DELETE, Method::PATCH, Method::HEAD] {
            let refused = Err("invalid method for role viewer".to_owned());
            assert_eq!(check(method, "/", Some(("x-api-key", "look"))), refused);
        }
    }

    #[test]
    fn the_history_is_not_for_viewers() {
        for path in [
            "revisions",
            "revisions/",
            "revisions/7",
            "revisions/diff?from=1&to=2",
            "explain?url=/&revision=7",
            "explain?url=/&re%76ision=7",
        ] {
            let uri = format!("/apisix/admin/{path}");
            let refused = check(Method::GET, &uri, Some(("x-api-key", "look"))).unwrap_err();
            assert!(refused.contains("for the role admin"), "{path}: {refused}");
            assert_eq!(check(Method::GET, &uri, Some(("x-api-key", "secret"))), Ok(()), "{path}");
        }
        for path in ["routes/revisions", "revisions/unconfirmed", "revisionsx", "explain?url=/a%3Frevision=7"]
        {
            let uri = format!("/apisix/admin/{path}");
            assert_eq!(check(Method::GET, &uri, Some(("x-api-key", "look"))), Ok(()), "{path}");
        }
    }

    #[test]
    fn without_keys_web_pages_are_refused() {
        let open = Config { key_required: false, ..config() };
        let (plain, ()) = Request::post("/").body(()).unwrap().into_parts();
        assert_eq!(check_key(&open, &plain).unwrap(), (KeyName::NotAsked, AdminRole::Admin));
        let page = Request::post("/").header("origin", "http://evil.test").body(()).unwrap();
        let (page, ()) = page.into_parts();
        let (refusal, _) = check_key(&open, &page).unwrap_err();
        assert_eq!(refusal.into_response().status(), StatusCode::FORBIDDEN);
        // DNS rebinding: the page's own name resolves to the gateway.
        let (rebound, ()) = Request::get("/").header("host", "evil.test:9180").body(()).unwrap().into_parts();
        let (refusal, _) = check_key(&open, &rebound).unwrap_err();
        assert_eq!(refusal.into_response().status(), StatusCode::FORBIDDEN);
        assert!(check_key(&Config { hosts: vec!["evil.test".to_owned()], ..open }, &rebound).is_ok());
        // With a key, any `Host` is accepted.
        let keyed =
            Request::get("/").header("host", "evil.test").header("x-api-key", "look").body(()).unwrap();
        assert!(check_key(&config(), &keyed.into_parts().0).is_ok());
    }

    #[test]
    fn pages_of_other_origins_are_recognised_without_an_origin() {
        let open = Config { key_required: false, ..config() };
        for (site, mode, dest, is_good) in [
            ("same-origin", "cors", "empty", true),
            ("none", "navigate", "document", true),
            ("cross-site", "navigate", "document", true),
            ("cross-site", "navigate", "iframe", false),
            ("cross-site", "no-cors", "image", false),
            // Another port of this machine is another origin, but gets its cookies.
            ("same-site", "no-cors", "empty", false),
        ] {
            let request =
                Request::get("/").header("host", "localhost:9180").header("cookie", "x_api_key=secret");
            let request = request.header("sec-fetch-site", site).header("sec-fetch-mode", mode);
            let (head, ()) = request.header("sec-fetch-dest", dest).body(()).unwrap().into_parts();
            for config in [&config(), &open] {
                assert_eq!(check_key(config, &head).is_ok(), is_good, "{site} {mode} {dest}");
            }
        }
    }

    #[test]
    fn only_allowed_addresses_come_in() {
        let allowed = |peer: &str| check_address(&config(), peer.parse().unwrap()).is_ok();
        assert!(allowed("127.0.0.1") && allowed("::ffff:127.0.0.9"));
        assert!(!allowed("127.0.1.1") && !allowed("10.0.0.1") && !allowed("::1"));
        let closed = Config { allow: Vec::new(), ..Config::default() };
        assert!(check_address(&closed, "127.0.0.1".parse().unwrap()).is_err());
    }
}
