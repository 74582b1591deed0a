//! hot path
//!
//! cors: tells browsers which other sites may call, and answers their preflights.
//!
//! Settings, headers and their quirks as in APISIX 3.18: every OPTIONS request
//! is answered 200 here, and `**` means everything the request asks for.

use model::Invalid;
use sdk::chain::Phases;
use sdk::pattern::{Pattern, Searches};
use sdk::{Build, Exchange, FieldLines, Method, Name, Plugin, Reply, Span, Step};
use serde::Deserialize;
use serde_json::{Value, json};

/// The stage.
pub struct Cors {
    /// `Access-Control-Allow-Methods`.
    methods: String,
    /// `Access-Control-Allow-Headers`; none is what the request asks for.
    headers: Option<String>,
    origins: Origins,
    by_regex: Option<Vec<Pattern>>,
    /// The metadata's origins that the configuration names.
    by_metadata: Option<Vec<Origins>>,
    timing: Option<Origins>,
    timing_by_regex: Option<Vec<Pattern>>,
    /// Headers about methods, headers and time are sent to preflights alone.
    standard: bool,
    rejects: bool,
    lines: Lines,
}

/// The headers whose values do not depend on the request.
struct Lines {
    any_origin: FieldLines,
    /// Without those that only preflights are about.
    brief: FieldLines,
    full: FieldLines,
    /// Whether `full` has `Access-Control-Allow-Headers`.
    has_headers: bool,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    allow_origins: String,
    allow_methods: String,
    allow_headers: String,
    expose_headers: Option<String>,
    max_age: i64,
    allow_credential: bool,
    allow_origins_by_regex: Option<Vec<String>>,
    allow_origins_by_metadata: Option<Vec<String>>,
    timing_allow_origins: Option<String>,
    timing_allow_origins_by_regex: Option<Vec<String>>,
    preflight_headers_only: bool,
    reject_other_origins: bool,
}

/// A setting of origins.
enum Origins {
    /// `*`
    Any,
    /// `**`: the value of the request, or `*` if it has none.
    Echo,
    One(String),
    Several(Vec<String>),
}

/// The value for the response.
enum HeaderValue<'a> {
    Any,
    Text(&'a str),
    /// The request's own origin.
    Own,
}

/// Where the Origin the client sent lies; a later stage may change the header itself.
struct Asked {
    origin: Span,
    preflight: bool,
    rejected: bool,
}

const ORIGINS: &str = r"^(\*|\*\*|null|\w+://[^,]+(,\w+://[^,]+)*)$";
const ALL_METHODS: &str = "GET,POST,PUT,DELETE,PATCH,HEAD,OPTIONS,CONNECT,TRACE";

impl Plugin for Cors {
    const NAME: &'static str = "cors";
    const PRIORITY: i32 = 4000;
    const PHASES: Phases = Phases::REWRITE.with(Phases::HEADER_FILTER);

    type Config = Config;

    fn schema() -> Value {
        let several = |what: &str| {
            format!(
                "`*` allows all {what} when credentials are not allowed, `**` allows all by force \
                 (mind the risk); several are separated by commas"
            )
        };
        let list = |description: &str| {
            json!({
                "type": "array",
                "description": description,
                "items": {"type": "string", "minLength": 1, "maxLength": 4096},
                "minItems": 1,
                "uniqueItems": true,
            })
        };
        json!({
            "type": "object",
            "properties": {
                "allow_origins": {
                    "description": several("origins"),
                    "type": "string",
                    "pattern": ORIGINS,
                    "default": "*",
                },
                "allow_methods": {"description": several("methods"), "type": "string", "default": "*"},
                "allow_headers": {"description": several("headers"), "type": "string", "default": "*"},
                "expose_headers": {
                    "description": "headers that scripts may read, separated by commas",
                    "type": "string",
                },
                "max_age": {
                    "description": "seconds for which a browser may keep the answer; -1 is not at all",
                    "type": "integer",
                    "default": 5,
                },
                "allow_credential": {
                    "description": "lets browsers send credentials; no other option may be `*` then",
                    "type": "boolean",
                    "default": false,
                },
                "allow_origins_by_regex": list("origins that match one of these are allowed"),
                "allow_origins_by_metadata": list("names of origins in the plugin's metadata"),
                "timing_allow_origins": {
                    "description": several("origins that may see timing"),
                    "type": "string",
                    "pattern": ORIGINS,
                },
                "timing_allow_origins_by_regex": list("origins that match one of these may see timing"),
                "preflight_headers_only": {
                    "description": "answers to preflights alone have Access-Control-Allow-Methods, -Allow-Headers and -Max-Age, with the method of the preflight for `**` and no time below 0; other requests with OPTIONS are forwarded",
                    "type": "boolean",
                    "default": false,
                },
                "reject_other_origins": {
                    "description": "requests of origins, with methods and preflights for headers that are not allowed get 403, except those of the site itself",
                    "type": "boolean",
                    "default": false,
                },
            },
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(json!({
            "type": "object",
            "properties": {
                "allow_origins": {
                    "type": "object",
                    "additionalProperties": {"type": "string", "pattern": ORIGINS},
                },
            },
        }))
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<Cors, Invalid> {
        config.check_credential()?;
        let patterns = |list: &Option<Vec<String>>, name: &str| {
            let compile = |(index, text): (usize, &String)| {
                Pattern::new(text, false).map_err(|invalid| invalid.at(format!("/{name}/{index}")))
            };
            list.as_ref().map(|list| list.iter().enumerate().map(compile).collect()).transpose()
        };
        let methods = match &*config.allow_methods {
            "**" if !config.preflight_headers_only => ALL_METHODS.to_owned(),
            methods => methods.to_owned(),
        };
        let headers = Some(config.allow_headers.clone()).filter(|headers| headers != "**");
        let lines = Lines::new(&config, &methods, headers.as_deref());
        Ok(Cors {
            by_regex: patterns(&config.allow_origins_by_regex, "allow_origins_by_regex")?,
            by_metadata: config.allow_origins_by_metadata.as_ref().map(|names| {
                let known = cx.metadata().and_then(|metadata| metadata.get("allow_origins"));
                let origin = |name: &String| known?.get(name)?.as_str().map(Origins::parse);
                names.iter().filter_map(origin).collect()
            }),
            timing: config.timing_allow_origins.as_deref().map(Origins::parse),
            timing_by_regex: patterns(
                &config.timing_allow_origins_by_regex,
                "timing_allow_origins_by_regex",
            )?,
            origins: Origins::parse(&config.allow_origins),
            methods,
            headers,
            standard: config.preflight_headers_only,
            rejects: config.reject_other_origins,
            lines,
        })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        let origin = x.header(&Name::Origin).map(<[u8]>::to_vec);
        let options = x.method() == Method::Options;
        let preflight = options && origin.is_some() && x.header(&Name::AccessControlRequestMethod).is_some();
        if let Some(own) = origin {
            let rejected = self.rejects && !same_site(x, &own) && !self.accepts(x, &own, preflight);
            let origin = x.intern(&own);
            x.set_note(Asked { origin, preflight, rejected });
            if rejected {
                return Step::Reply(Reply::status(403).because("a request of another site is not allowed"));
            }
        }
        if preflight || options && !self.standard { Step::Reply(Reply::status(200)) } else { Step::Next }
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        let (asked, preflight) = match x.note::<Asked>() {
            Some(asked) if asked.rejected => return,
            Some(asked) => (Some(asked.origin), asked.preflight),
            None => (None, false),
        };
        let own = asked.map(|span| x.request().fields.bytes(span).to_vec());
        let own = own.as_deref();
        // No cache keeps answers to OPTIONS (RFC 9110 section 9.3.7).
        let cached = !(self.standard && preflight);
        if cached && !matches!(self.origins, Origins::Any) {
            set(x.add_response_header("Vary", b"Origin"));
        }
        if let Some(allowed) = self.allowed(own, x.searches()) {
            match allowed {
                HeaderValue::Any => x.set_response_lines(&self.lines.any_origin),
                _ => set(x.set_response_header(&Name::AccessControlAllowOrigin, allowed.bytes(own))),
            }
            self.allow(x, preflight || !self.standard);
        }
        let timing = match (&self.timing_by_regex, &self.timing) {
            (Some(patterns), _) => matches(patterns, own, x.searches()).then_some(HeaderValue::Own),
            (None, Some(origins)) => origins.answer(own).filter(|answer| answer.fits(own)),
            (None, None) => None,
        };
        if let Some(answer) = timing {
            set(x.set_response_header("Timing-Allow-Origin", answer.bytes(own)));
        }
    }
}

impl Config {
    fn check_credential(&self) -> Result<(), Invalid> {
        let options = [
            ("allow_origins", Some(&self.allow_origins)),
            ("allow_methods", Some(&self.allow_methods)),
            ("allow_headers", Some(&self.allow_headers)),
            ("expose_headers", self.expose_headers.as_ref()),
            ("timing_allow_origins", self.timing_allow_origins.as_ref()),
        ];
        let all = |value: Option<&String>| value.is_some_and(|value| value == "*");
        match options.into_iter().find(|(_, value)| self.allow_credential && all(*value)) {
            None => Ok(()),
            Some((name, _)) => {
                Err(Invalid::new("you can not set '*' for other option when 'allow_credential' is true")
                    .at(format!("/{name}"))
                    .hint("name what is allowed, or write `**` if all must be"))
            }
        }
    }
}

impl Cors {
    /// Returns the answer to a request of this origin, if it is let in. Origins named by metadata come
    /// first where the configuration asks for it, then the patterns, then the plain list.
    fn allowed(&self, own: Option<&[u8]>, searches: &Searches) -> Option<HeaderValue<'_>> {
        let lets_in = |origins: &Origins| origins.answer(own).is_some_and(|answer| answer.fits(own));
        if own.is_some() && self.by_metadata.iter().flatten().any(lets_in) {
            return Some(HeaderValue::Own);
        }
        // Beside metadata, the default `*` does not let everybody in, nor `**` who is from nowhere.
        if self.by_metadata.is_some() && (own.is_none() || matches!(self.origins, Origins::Any)) {
            return None;
        }
        match &self.by_regex {
            Some(patterns) => matches(patterns, own, searches).then_some(HeaderValue::Own),
            None => self.origins.answer(own).filter(|answer| answer.fits(own)),
        }
    }

    /// Whether this origin may send the request, or the one that its preflight is for.
    fn accepts(&self, x: &Exchange<'_>, own: &[u8], preflight: bool) -> bool {
        let asked = |name| x.header(name).unwrap_or_default();
        let method = match preflight {
            true => asked(&Name::AccessControlRequestMethod),
            false => x.request().method_bytes(),
        };
        // One header that is allowed is enough: browsers check the others.
        let headers = asked(&Name::AccessControlRequestHeaders);
        let mut wanted = headers.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        self.allowed(Some(own), x.searches()).is_some()
            && lists(&self.methods, method)
            && (!preflight
                || headers.is_empty()
                || self.headers.as_ref().is_none_or(|allowed| wanted.any(|name| lists(allowed, name))))
    }

    /// Adds the headers of an origin that is allowed; with `full`, those that preflights are about as well.
    fn allow(&self, x: &mut Exchange<'_>, full: bool) {
        if full {
            x.set_response_lines(&self.lines.full);
            self.allow_asked(x);
        } else {
            x.set_response_lines(&self.lines.brief);
        }
    }

    /// Allows the methods and headers that a preflight asks for, where all are allowed.
    fn allow_asked(&self, x: &mut Exchange<'_>) {
        if self.methods == "**" {
            let asked = x.header(&Name::AccessControlRequestMethod).unwrap_or_default().to_vec();
            if !asked.is_empty() {
                set(x.set_response_header(&Name::AccessControlAllowMethods, &asked));
            }
        }
        if self.lines.has_headers {
            return;
        }
        let asked = x.header(&Name::AccessControlRequestHeaders).filter(|_| self.headers.is_none());
        match asked.map(<[u8]>::to_vec) {
            Some(asked) if !self.standard || !asked.is_empty() => {
                set(x.set_response_header(&Name::AccessControlAllowHeaders, &asked));
            }
            _ => x.remove_response_header(&Name::AccessControlAllowHeaders),
        }
    }
}

impl Lines {
    fn new(config: &Config, methods: &str, headers: Option<&str>) -> Lines {
        let is_sent = |value: &&str| !config.preflight_headers_only || !value.is_empty();
        let age = config.max_age.to_string();
        let max_age = Some(&*age).filter(|_| !config.preflight_headers_only || config.max_age >= 0);
        let exposed = config.expose_headers.as_deref().filter(|names| !names.is_empty());
        let expose = (Name::AccessControlExposeHeaders, exposed);
        let credentials = (Name::AccessControlAllowCredentials, config.allow_credential.then_some("true"));
        let full = lines([
            (
                Name::AccessControlAllowMethods,
                Some(methods).filter(|methods| *methods != "**").filter(is_sent),
            ),
            (Name::AccessControlMaxAge, max_age),
            expose,
            (Name::AccessControlAllowHeaders, headers.filter(is_sent)),
            credentials,
        ]);
        let has_headers = full.iter().any(|(_, _, id)| id == Name::AccessControlAllowHeaders);
        Lines {
            has_headers,
            any_origin: lines([(Name::AccessControlAllowOrigin, Some("*"))]),
            brief: lines([expose, credentials]),
            full,
        }
    }
}

/// The lines that have a value. One whose value cannot stand in a head is not sent.
fn lines<'a>(values: impl IntoIterator<Item = (Name, Option<&'a str>)>) -> FieldLines {
    let line = |(name, value): (Name, Option<&'a str>)| Some((name.as_str().as_bytes(), value?.as_bytes()));
    let can_stand = |line: &(&[u8], &[u8])| FieldLines::new([*line]).is_ok();
    FieldLines::new(values.into_iter().filter_map(line).filter(can_stand)).unwrap_or_default()
}

/// Whether the request comes from a page of the same site: its Origin has the scheme and host of the request.
fn same_site(x: &Exchange<'_>, own: &[u8]) -> bool {
    let host = x.header("Host").unwrap_or_default();
    own.strip_prefix(x.client().scheme().as_bytes())
        .and_then(|rest| rest.strip_prefix(b"://"))
        .is_some_and(|origin| origin.eq_ignore_ascii_case(host))
}

/// Whether a list of names, or one that stands for all, has this name.
fn lists(list: &str, name: &[u8]) -> bool {
    matches!(list, "*" | "**") || list.split(',').any(|one| one.trim().as_bytes().eq_ignore_ascii_case(name))
}

/// The names are constants and the values come from a checked request or an operator;
/// one that cannot stand in a head is left out.
fn set(_outcome: Result<(), sdk::BadField>) {}

/// Whether one of the patterns lets the origin in. None does where a search gives up.
fn matches(patterns: &[Pattern], own: Option<&[u8]>, searches: &Searches) -> bool {
    own.is_some_and(|own| patterns.iter().any(|pattern| pattern.judge(own, searches) == Ok(true)))
}

impl Origins {
    fn parse(text: &str) -> Origins {
        match text {
            "*" => Origins::Any,
            "**" => Origins::Echo,
            several if several.contains(',') => Origins::Several(
                several.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect(),
            ),
            one => Origins::One(one.to_owned()),
        }
    }

    fn answer(&self, own: Option<&[u8]>) -> Option<HeaderValue<'_>> {
        match self {
            Origins::Any => Some(HeaderValue::Any),
            Origins::Echo => Some(if own.is_some() { HeaderValue::Own } else { HeaderValue::Any }),
            Origins::One(origin) => Some(HeaderValue::Text(origin)),
            Origins::Several(list) => {
                let own = own?;
                list.iter().any(|origin| origin.as_bytes() == own).then_some(HeaderValue::Own)
            }
        }
    }
}

impl HeaderValue<'_> {
    /// Whether it lets this origin in.
    fn fits(&self, own: Option<&[u8]>) -> bool {
        match self {
            HeaderValue::Any | HeaderValue::Own => true,
            HeaderValue::Text(text) => own == Some(text.as_bytes()),
        }
    }

    fn bytes<'b>(&'b self, own: Option<&'b [u8]>) -> &'b [u8] {
        match self {
            HeaderValue::Any => b"*",
            HeaderValue::Text(text) => text.as_bytes(),
            HeaderValue::Own => own.unwrap_or(b"*"),
        }
    }
}

#[cfg(test)]
mod tests;
