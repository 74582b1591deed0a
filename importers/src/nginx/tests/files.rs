//! Locations that serve files.

use serde_json::json;

use super::*;

/// The settings of `static-files` of the route with this id, and all findings.
fn plugin(import: &Import, id: &str) -> Value {
    check(import);
    value(import, &format!("routes/{id}"), "/plugins/static-files").clone()
}

/// The settings for a location in a server that includes the table of types.
fn files(location: &str) -> (Value, Vec<String>) {
    let import = import(&format!(
        "http {{ include mime.types; default_type application/octet-stream;\nserver {{\n{location}\n}} }}\n"
    ));
    let import_findings = findings(&import).into_iter().filter(|one| !one.contains("mime.types"));
    let own = import.resources.iter().find(|one| one.value.pointer("/plugins/static-files").is_some());
    let key = own.unwrap_or_else(|| panic!("{location}: {:?}", import.resources)).key.id.clone();
    let mut plugin = plugin(&import, &key);
    let fields = plugin.as_object_mut().unwrap();
    assert_eq!(fields.remove("hidden_files"), Some(json!(true)));
    assert_eq!(fields.remove("default_type"), Some(json!("application/octet-stream")));
    (plugin, import_findings.collect())
}

/// The folders that the gateway may serve.
fn roots(import: &Import) -> Option<&Value> {
    let setting = import.settings.iter().find(|one| one.path == "plugin_attr.static-files.roots");
    setting.map(|one| &one.value)
}

fn none() -> Vec<String> {
    Vec::new()
}

#[test]
fn folders_are_served() {
    for (location, expected) in [
        ("location / { root /www; }", json!({"root": "/www"})),
        ("root /www; location /a { }", json!({"root": "/www"})),
        ("location /a/ { alias /www/; }", json!({"root": "/www/", "strip": "/a/"})),
        ("location /a { alias /www; }", json!({"root": "/www", "strip": "/a"})),
        ("location = /a.ico { alias /www/b.ico; }", json!({"root": "/www", "try_files": ["/b.ico", "=404"]})),
        ("location ~ \\.png$ { root /www; }", json!({"root": "/www"})),
        (
            "location / { root /www; index a.html b.html; }",
            json!({"root": "/www", "index": ["a.html", "b.html"]}),
        ),
        (
            "location / { root /www; expires 1h; etag off; }",
            json!({"root": "/www", "expires": 3600, "etag": false}),
        ),
        ("location / { root /www; expires epoch; }", json!({"root": "/www", "expires": -1})),
        ("set $site a; location / { root /www/$site; }", json!({"root": "/www/a"})),
    ] {
        assert_eq!(files(location), (expected, none()), "{location}");
    }
    let import = server("location ~ ^/u/(.+)/f/(.*)$ { alias /data/$1/files/$2; }");
    assert_eq!(value(&import, "routes/port-80-u-.-f-.", "/plugins/static-files/root"), "/data");
    let pairs = value(&import, "routes/port-80-u-.-f-.", "/plugins/proxy-rewrite/regex_uri");
    assert_eq!(*pairs, json!(["^/u/(.+)/f/(.*)$", "/$1/files/$2"]));
}

#[test]
fn attempts_are_kept() {
    for (location, expected) in [
        ("root /www; location / { try_files $uri $uri/ =404; }", json!(["$uri", "$uri/", "=404"])),
        (
            "root /www; location / { try_files $uri $uri/ /index.html; }",
            json!(["$uri", "$uri/", "/index.html", "=404"]),
        ),
        (
            "root /www; try_files $uri $uri.html /x/index.html?$args;",
            json!(["$uri", "${uri}.html", "/x/index.html", "=404"]),
        ),
        (
            "location /a/ { alias /www/; try_files $uri /a/index.html; }",
            json!(["$uri", "/index.html", "=404"]),
        ),
        (
            "root /www; location / { try_files $uri /e.html; } location = /e.html { }",
            json!(["$uri", "/e.html", "=404"]),
        ),
        (
            "root /www; location / { try_files $uri @gone; } location @gone { return 410; }",
            json!(["$uri", "=410"]),
        ),
    ] {
        let (plugin, found) = files(location);
        assert_eq!((&plugin["try_files"], found), (&expected, none()), "{location}");
    }
    let text = "root /www; location / { try_files $uri @app; } location @app { proxy_pass http://b:1; }";
    let import = server(text);
    assert_eq!(plugin(&import, "port-80")["try_files"], json!(["$uri", "@upstream"]));
    assert_eq!(*value(&import, "routes/port-80", "/upstream_id"), "b-1");
    let text = text.replace("{ proxy_pass", "{ auth_basic x; auth_basic_user_file users; proxy_pass");
    assert!(
        findings(&server(&text))
            .iter()
            .any(|one| one.starts_with("guard") && one.contains("location `@app`"))
    );
    let text = "root /www; location / { try_files $uri /e.html; } location = /e.html { if ($arg_a) { return 403; } }";
    let found = findings(&server(text));
    assert!(
        found.iter().any(|one| one.starts_with("guard") && one.contains("location `/e.html`")),
        "{found:?}"
    );
    let error = "location / { root /www; error_page 404 = @app; } location @app { proxy_pass http://b:1; }";
    let import = server(error);
    assert_eq!(plugin(&import, "port-80")["try_files"], json!(["$uri", "$uri/", "@upstream"]));
}

#[test]
fn sources_of_programs_are_never_served_as_files() {
    let php = "root /www; index index.php index.html; location / { try_files $uri $uri/ /index.php?$args; }
               location ~ \\.php$ { fastcgi_pass unix:/x; }";
    let import = server(php);
    let settings = plugin(&import, "port-80");
    assert_eq!(settings["try_files"], json!(["$uri", "$uri/", "=501"]));
    // `index.html` is the default.
    assert_eq!(settings.get("index"), None);
    let found = findings(&import);
    assert!(found.iter().any(|one| one.contains("`index.php` is not looked up in folders")), "{found:?}");
    assert!(found.iter().any(|one| one.contains("requests get 501 in place of `/index.php`")), "{found:?}");
}

#[test]
fn files_stand_in_the_place_of_errors() {
    let page = "location = /50x.html { root /pages; internal; }";
    let import = server(&format!(
        "error_page 500 502 503 504 /50x.html; location / {{ proxy_pass http://b:1; }} {page}"
    ));
    let expected = json!({"root": "/pages", "try_files": ["@upstream"],
        "error_files": [{"status": [500, 502, 503, 504], "file": "/50x.html"}]});
    assert_eq!(plugin(&import, "port-80"), expected);
    assert_eq!(findings(&import), none());
    assert_eq!(roots(&import), Some(&json!(["/pages"])));
    let import = server(&format!(
        "proxy_intercept_errors on; error_page 404 =200 /50x.html; location / {{ proxy_pass http://b:1; }} {page}"
    ));
    let entry = json!([{"status": [404], "file": "/50x.html", "answer": 200, "of_upstream": true}]);
    assert_eq!(plugin(&import, "port-80")["error_files"], entry);
    let import = server(&format!(
        "location / {{ root /www; error_page 404 /404.html; error_page 403 /50x.html; }} {page}"
    ));
    let entries = json!([{"status": [404], "file": "/404.html"}, {"status": [403], "root": "/pages", "file": "/50x.html"}]);
    assert_eq!(plugin(&import, "port-80")["error_files"], entries);
    assert_eq!(roots(&import), Some(&json!(["/www", "/pages"])));
    let import = server(&format!("error_page 404 /50x.html; location / {{ return 404; }} {page}"));
    assert_eq!(plugin(&import, "port-80")["error_files"], json!([{"status": [404], "file": "/50x.html"}]));
    for other in ["404 http://other.test/", "404 @named", "404 /app", "404 /$uri"] {
        let text = format!(
            "error_page {other}; location / {{ proxy_pass http://b:1; }} location /app {{ proxy_pass http://b:1; }}"
        );
        let found = findings(&server(&text));
        assert!(found.iter().any(|one| one.starts_with("behaviour: error_page")), "{other}: {found:?}");
    }
}

#[test]
fn folders_that_depend_on_requests_are_reported() {
    for location in [
        "location / { root /www/$host; }",
        "location / { root /; }",
        "location / { root /etc/; }",
        "location ~ /(.*) { alias /www/$1; }",
        "location / { alias /www/$arg_x; }",
    ] {
        let import = server(location);
        let found = findings(&import);
        assert!(found.iter().any(|one| one.contains("requests get 501")), "{location}: {found:?}");
        assert!(import.settings.iter().all(|one| !one.path.contains("static-files")), "{location}");
    }
    let found = findings(&server("location / { root html; autoindex on; }"));
    assert!(found.iter().any(|one| one.contains("not listed: 403")), "{found:?}");
    assert!(
        found.iter().any(|one| one.starts_with("cosmetic") && one.contains("relative folder")),
        "{found:?}"
    );
}

#[test]
fn times_and_added_headers_go_together() {
    let import =
        server("location / { root /www; expires 1y; add_header Cache-Control \"public, immutable\"; }");
    check(&import);
    let set = value(&import, "routes/port-80", "/plugins/response-rewrite/headers/set");
    assert_eq!(*set, json!({"Cache-Control": "max-age=31536000, public, immutable"}));
    assert_eq!(plugin(&import, "port-80")["expires"], 31_536_000);
    assert_eq!(findings(&import), none());
}
