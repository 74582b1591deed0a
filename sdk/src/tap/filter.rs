//! Which requests a tap takes.

use super::Times;
use crate::exchange::Exchange;

/// Conditions on a finished request; all that are set must hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    route: Option<Box<str>>,
    consumer: Option<Box<str>>,
    host: Option<Box<str>>,
    method: Option<Box<str>>,
    path: Option<Path>,
    status: Option<Status>,
    min_latency_us: u64,
    /// Events show the request's headers.
    pub headers: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Path {
    Exact(Box<[u8]>),
    /// Written with a `*` at its end.
    Prefix(Box<[u8]>),
}

#[derive(Debug, Clone, PartialEq)]
enum Status {
    /// The first digit: `5xx`.
    Class(u16),
    Exact(u16),
}

/// Bytes of a condition.
const MOST: usize = 1024;

impl Filter {
    /// Adds the condition `name=value`.
    ///
    /// # Errors
    /// A message for people: the name is unknown or the value does not fit.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if value.len() > MOST {
            return Err(format!("{name} is longer than {MOST} bytes"));
        }
        // An empty field of a form is no condition.
        if value.is_empty() {
            return Ok(());
        }
        match name {
            "route" => self.route = Some(value.into()),
            "consumer" => self.consumer = Some(value.into()),
            "host" => self.host = Some(value.to_ascii_lowercase().into()),
            "method" => self.method = Some(value.to_ascii_uppercase().into()),
            "path" => {
                self.path = Some(match value.strip_suffix('*') {
                    Some(prefix) => Path::Prefix(prefix.as_bytes().into()),
                    None => Path::Exact(value.as_bytes().into()),
                });
            }
            "status" => self.status = Some(status(value)?),
            "min_latency" => self.min_latency_us = latency(value)?,
            "headers" => {
                self.headers = match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err("headers must be true or false".to_owned()),
                };
            }
            _ => {
                return Err(format!(
                    "unknown condition {name:?}; known are route, status, path, consumer, host, method, min_latency, headers"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn takes(&self, x: &Exchange<'_>, times: &Times) -> bool {
        let equal = |wanted: &Option<Box<str>>, own: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| own == Some(wanted))
        };
        let status = x.status();
        times.total_us >= self.min_latency_us
            && match self.status {
                None => true,
                Some(Status::Class(class)) => status / 100 == class,
                Some(Status::Exact(wanted)) => status == wanted,
            }
            && equal(&self.route, x.route().map(|route| &*route.id))
            && equal(&self.consumer, x.consumer().map(|consumer| consumer.name.as_str()))
            && self.method.as_deref().is_none_or(|method| method.as_bytes() == x.request().method_bytes())
            && self
                .host
                .as_deref()
                .is_none_or(|host| x.request().host().eq_ignore_ascii_case(host.as_bytes()))
            && match &self.path {
                None => true,
                Some(Path::Exact(path)) => x.path() == &**path,
                Some(Path::Prefix(path)) => x.path().starts_with(path),
            }
    }
}

fn status(text: &str) -> Result<Status, String> {
    let digits = text.strip_suffix("xx").or_else(|| text.strip_suffix("XX"));
    let number = |digits: &str| digits.parse::<u16>().ok();
    match digits {
        Some(class) => number(class).filter(|class| (1..=5).contains(class)).map(Status::Class),
        None => number(text).filter(|status| (100..=599).contains(status)).map(Status::Exact),
    }
    .ok_or_else(|| format!("status {text:?} must be a number such as 502, or a class such as 5xx"))
}

/// A time such as `250ms`, `1.5s` or, without a unit, milliseconds.
fn latency(text: &str) -> Result<u64, String> {
    let (number, factor) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e3),
        (None, Some(number)) => (number, 1e6),
        (None, None) => (text, 1e3),
    };
    let micros = number.trim().parse::<f64>().ok().map(|number| number * factor);
    let micros = micros.filter(|micros| (0.0..=1e12).contains(micros));
    micros
        .map(|micros| micros as u64)
        .ok_or_else(|| format!("min_latency {text:?} must be a time such as 250ms or 1s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read() {
        let mut filter = Filter::default();
        for (name, value) in
            [("status", "5xx"), ("path", "/a/*"), ("min_latency", "1.5s"), ("method", "get"), ("route", "")]
        {
            filter.set(name, value).unwrap();
        }
        assert_eq!(filter.status, Some(Status::Class(5)));
        assert_eq!(filter.path, Some(Path::Prefix(b"/a/"[..].into())));
        assert_eq!(
            (filter.min_latency_us, filter.method.as_deref(), filter.route),
            (1_500_000, Some("GET"), None)
        );
        assert_eq!((latency("250ms"), latency("250"), latency("0")), (Ok(250_000), Ok(250_000), Ok(0)));
        for (name, value) in [
            ("status", "6xx"),
            ("status", "99"),
            ("status", "2xxx"),
            ("min_latency", "soon"),
            ("min_latency", "-1"),
            ("min_latency", "inf"),
            ("headers", "yes"),
            ("no", "1"),
            ("route", &"x".repeat(MOST + 1)),
        ] {
            assert!(Filter::default().set(name, value).is_err(), "{name}={value}");
        }
    }
}
