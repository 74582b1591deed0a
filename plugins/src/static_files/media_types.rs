//! Media types by the ending of a file's name.
//!
//! nginx's table, which is what files of nginx rely on, and a few newer types. A table of our own, since the lists of
//! crates have a thousand types that no site has, and change with their versions.

/// Sorted, for a binary search.
const TYPES: &[(&str, &str)] = &[
    ("3gp", "video/3gpp"),
    ("3gpp", "video/3gpp"),
    ("7z", "application/x-7z-compressed"),
    ("ai", "application/postscript"),
    ("asf", "video/x-ms-asf"),
    ("asx", "video/x-ms-asf"),
    ("atom", "application/atom+xml"),
    ("avi", "video/x-msvideo"),
    ("avif", "image/avif"),
    ("bin", "application/octet-stream"),
    ("bmp", "image/x-ms-bmp"),
    ("cco", "application/x-cocoa"),
    ("crt", "application/x-x509-ca-cert"),
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("deb", "application/octet-stream"),
    ("der", "application/x-x509-ca-cert"),
    ("dll", "application/octet-stream"),
    ("dmg", "application/octet-stream"),
    ("doc", "application/msword"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("ear", "application/java-archive"),
    ("eot", "application/vnd.ms-fontobject"),
    ("eps", "application/postscript"),
    ("exe", "application/octet-stream"),
    ("flv", "video/x-flv"),
    ("gif", "image/gif"),
    ("hqx", "application/mac-binhex40"),
    ("htc", "text/x-component"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("ico", "image/x-icon"),
    ("img", "application/octet-stream"),
    ("iso", "application/octet-stream"),
    ("jad", "text/vnd.sun.j2me.app-descriptor"),
    ("jar", "application/java-archive"),
    ("jardiff", "application/x-java-archive-diff"),
    ("jng", "image/x-jng"),
    ("jnlp", "application/x-java-jnlp-file"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "application/javascript"),
    ("json", "application/json"),
    ("kar", "audio/midi"),
    ("kml", "application/vnd.google-earth.kml+xml"),
    ("kmz", "application/vnd.google-earth.kmz"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("m4a", "audio/x-m4a"),
    ("m4v", "video/x-m4v"),
    ("map", "application/json"),
    ("md", "text/markdown"),
    ("mid", "audio/midi"),
    ("midi", "audio/midi"),
    ("mjs", "application/javascript"),
    ("mml", "text/mathml"),
    ("mng", "video/x-mng"),
    ("mov", "video/quicktime"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("mpeg", "video/mpeg"),
    ("mpg", "video/mpeg"),
    ("msi", "application/octet-stream"),
    ("msm", "application/octet-stream"),
    ("msp", "application/octet-stream"),
    ("odg", "application/vnd.oasis.opendocument.graphics"),
    ("odp", "application/vnd.oasis.opendocument.presentation"),
    ("ods", "application/vnd.oasis.opendocument.spreadsheet"),
    ("odt", "application/vnd.oasis.opendocument.text"),
    ("ogg", "audio/ogg"),
    ("pdb", "application/x-pilot"),
    ("pdf", "application/pdf"),
    ("pem", "application/x-x509-ca-cert"),
    ("pl", "application/x-perl"),
    ("pm", "application/x-perl"),
    ("png", "image/png"),
    ("ppt", "application/vnd.ms-powerpoint"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    ("prc", "application/x-pilot"),
    ("ps", "application/postscript"),
    ("ra", "audio/x-realaudio"),
    ("rar", "application/x-rar-compressed"),
    ("rpm", "application/x-redhat-package-manager"),
    ("rss", "application/rss+xml"),
    ("rtf", "application/rtf"),
    ("run", "application/x-makeself"),
    ("sea", "application/x-sea"),
    ("shtml", "text/html"),
    ("sit", "application/x-stuffit"),
    ("svg", "image/svg+xml"),
    ("svgz", "image/svg+xml"),
    ("swf", "application/x-shockwave-flash"),
    ("tcl", "application/x-tcl"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("tk", "application/x-tcl"),
    ("ts", "video/mp2t"),
    ("txt", "text/plain"),
    ("war", "application/java-archive"),
    ("wasm", "application/wasm"),
    ("wbmp", "image/vnd.wap.wbmp"),
    ("webm", "video/webm"),
    ("webmanifest", "application/manifest+json"),
    ("webp", "image/webp"),
    ("wml", "text/vnd.wap.wml"),
    ("wmlc", "application/vnd.wap.wmlc"),
    ("wmv", "video/x-ms-wmv"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xhtml", "application/xhtml+xml"),
    ("xls", "application/vnd.ms-excel"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("xml", "text/xml"),
    ("xpi", "application/x-xpinstall"),
    ("xspf", "application/xspf+xml"),
    ("zip", "application/zip"),
];

/// The ending of a file's name, in lower case; `None` without one.
pub(super) fn ending(path: &[u8]) -> Option<String> {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let dot = name.iter().rposition(|byte| *byte == b'.')?;
    let ending = std::str::from_utf8(&name[dot + 1..]).ok()?;
    (!ending.is_empty()).then(|| ending.to_ascii_lowercase())
}

pub(super) fn of(ending: &str) -> Option<&'static str> {
    TYPES.binary_search_by(|(known, _)| (*known).cmp(ending)).ok().map(|at| TYPES[at].1)
}

/// Whether a charset belongs to the type: nginx's `charset_types`.
pub(super) fn is_text(kind: &str) -> bool {
    const TEXT: [&str; 6] = [
        "text/html",
        "text/xml",
        "text/plain",
        "text/vnd.wap.wml",
        "application/javascript",
        "application/rss+xml",
    ];
    TEXT.contains(&kind) || kind == "text/css"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_have_types() {
        assert!(TYPES.is_sorted_by(|one, next| one.0 < next.0));
        let of_path = |path: &str| ending(path.as_bytes()).as_deref().and_then(of);
        assert_eq!(of_path("a/b.tar.ZIP"), Some("application/zip"));
        assert_eq!(of_path("index.html"), Some("text/html"));
        for path in ["a", "a.", "a.html/b", "a.unknown", ""] {
            assert_eq!(of_path(path), None, "{path}");
        }
        assert_eq!(ending(b"a.\xff"), None);
    }
}
