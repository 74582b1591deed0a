//! Durations, sizes and statuses as Spring Boot reads them.

/// Seconds of a duration: `500ms`, `PT1.5S`, `3m`, or a number in milliseconds.
pub fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Ok(milliseconds) = text.parse::<f64>() {
        return Some(milliseconds / 1000.0);
    }
    let upper = text.to_ascii_uppercase();
    if let Some(rest) = upper.strip_prefix('P') {
        return iso(rest);
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '-' && c != '+')?;
    let number: f64 = text[..end].parse().ok()?;
    let unit = match text[end..].trim().to_ascii_lowercase().as_str() {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    Some(number * unit)
}

/// The rest of `P…`: days, and after `T` hours, minutes and seconds.
fn iso(rest: &str) -> Option<f64> {
    let (mut total, mut in_time, mut number) = (0.0, false, String::new());
    for c in rest.chars() {
        let unit = match c {
            'T' => {
                in_time = true;
                continue;
            }
            'D' => 86_400.0,
            'H' => 3600.0,
            'M' if in_time => 60.0,
            'S' => 1.0,
            c => {
                number.push(c);
                continue;
            }
        };
        total += number.parse::<f64>().ok()? * unit;
        number.clear();
    }
    number.is_empty().then_some(total)
}

/// Bytes of a size: `5MB`, `512KB`, `100`.
pub fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().ok()?;
    let shift = match text[end..].trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "KB" | "K" => 10,
        "MB" | "M" => 20,
        "GB" | "G" => 30,
        "TB" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// A status by its number, or by its name in Spring's `HttpStatus`.
pub fn status(text: &str) -> Option<u16> {
    if let Ok(number) = text.trim().parse() {
        return (100..=999).contains(&number).then_some(number);
    }
    let name = text.trim().to_ascii_uppercase();
    STATUSES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

const STATUSES: &[(&str, u16)] = &[
    ("CONTINUE", 100),
    ("SWITCHING_PROTOCOLS", 101),
    ("PROCESSING", 102),
    ("EARLY_HINTS", 103),
    ("OK", 200),
    ("CREATED", 201),
    ("ACCEPTED", 202),
    ("NON_AUTHORITATIVE_INFORMATION", 203),
    ("NO_CONTENT", 204),
    ("RESET_CONTENT", 205),
    ("PARTIAL_CONTENT", 206),
    ("MULTI_STATUS", 207),
    ("ALREADY_REPORTED", 208),
    ("IM_USED", 226),
    ("MULTIPLE_CHOICES", 300),
    ("MOVED_PERMANENTLY", 301),
    ("FOUND", 302),
    ("MOVED_TEMPORARILY", 302),
    ("SEE_OTHER", 303),
    ("NOT_MODIFIED", 304),
    ("TEMPORARY_REDIRECT", 307),
    ("PERMANENT_REDIRECT", 308),
    ("BAD_REQUEST", 400),
    ("UNAUTHORIZED", 401),
    ("PAYMENT_REQUIRED", 402),
    ("FORBIDDEN", 403),
    ("NOT_FOUND", 404),
    ("METHOD_NOT_ALLOWED", 405),
    ("NOT_ACCEPTABLE", 406),
    ("PROXY_AUTHENTICATION_REQUIRED", 407),
    ("REQUEST_TIMEOUT", 408),
    ("CONFLICT", 409),
    ("GONE", 410),
    ("LENGTH_REQUIRED", 411),
    ("PRECONDITION_FAILED", 412),
    ("PAYLOAD_TOO_LARGE", 413),
    ("CONTENT_TOO_LARGE", 413),
    ("REQUEST_ENTITY_TOO_LARGE", 413),
    ("URI_TOO_LONG", 414),
    ("UNSUPPORTED_MEDIA_TYPE", 415),
    ("REQUESTED_RANGE_NOT_SATISFIABLE", 416),
    ("EXPECTATION_FAILED", 417),
    ("I_AM_A_TEAPOT", 418),
    ("UNPROCESSABLE_ENTITY", 422),
    ("UNPROCESSABLE_CONTENT", 422),
    ("LOCKED", 423),
    ("FAILED_DEPENDENCY", 424),
    ("TOO_EARLY", 425),
    ("UPGRADE_REQUIRED", 426),
    ("PRECONDITION_REQUIRED", 428),
    ("TOO_MANY_REQUESTS", 429),
    ("REQUEST_HEADER_FIELDS_TOO_LARGE", 431),
    ("UNAVAILABLE_FOR_LEGAL_REASONS", 451),
    ("INTERNAL_SERVER_ERROR", 500),
    ("NOT_IMPLEMENTED", 501),
    ("BAD_GATEWAY", 502),
    ("SERVICE_UNAVAILABLE", 503),
    ("GATEWAY_TIMEOUT", 504),
    ("HTTP_VERSION_NOT_SUPPORTED", 505),
    ("VARIANT_ALSO_NEGOTIATES", 506),
    ("INSUFFICIENT_STORAGE", 507),
    ("LOOP_DETECTED", 508),
    ("BANDWIDTH_LIMIT_EXCEEDED", 509),
    ("NOT_EXTENDED", 510),
    ("NETWORK_AUTHENTICATION_REQUIRED", 511),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read() {
        for (text, expected) in [
            ("1500", Some(1.5)),
            ("5s", Some(5.0)),
            ("2 m", Some(120.0)),
            ("PT1.5S", Some(1.5)),
            ("p1dt1h", Some(90_000.0)),
            ("soon", None),
            ("5x", None),
            ("PTx", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
        assert_eq!(
            (bytes("5MB"), bytes("10"), bytes("1x"), bytes("99999999999TB")),
            (Some(5 << 20), Some(10), None, None)
        );
        assert_eq!((status("BAD_GATEWAY"), status("401"), status("x")), (Some(502), Some(401), None));
    }
}
