//! Responses made of stored ones (RFC 9111 section 4).

use cache::{Content, Entry};
use sdk::{Exchange, Fields, Method, Reply};

use super::range::{self, Wanted};
use super::rules;
use super::{ProxyCache, STATUS};

impl ProxyCache {
    /// Answers from the cache, before the upstream is contacted. The fields are set before all header
    /// filters, which may change them.
    pub(super) fn answer(
        &self,
        x: &mut Exchange<'_>,
        entry: &Entry,
        content: &Content,
        status: &str,
    ) -> Reply {
        for (at, field) in content.fields.list().iter().enumerate() {
            let name = content.fields.bytes(field.name);
            let Ok(text) = std::str::from_utf8(name) else { continue };
            let before = &content.fields.list()[..at];
            let again = before.iter().any(|one| content.fields.bytes(one.name).eq_ignore_ascii_case(name));
            let value = content.fields.bytes(field.value);
            // The value came as a field, so it is valid in one.
            let _ = match again {
                false => x.set_response_header(text, value),
                true => x.add_response_header(text, value),
            };
        }
        let age = entry.age_at(self.now_ms(x)).to_string();
        let _ = x.set_response_header("Age", age.as_bytes());
        let _ = x.set_response_header(STATUS, status.as_bytes());
        reply_of(x.method(), &x.request().fields, content)
    }
}

/// A stored response in the place of the upstream's, whose head is dropped.
pub(super) fn in_place(
    x: &Exchange<'_>,
    own: Option<&Fields>,
    content: &Content,
    age: u64,
    status: &str,
) -> Reply {
    let mut fields = Box::new(content.fields.clone());
    // Digits and a word are valid values.
    let _ = fields.append(b"Age", age.to_string().as_bytes());
    let _ = fields.append(STATUS.as_bytes(), status.as_bytes());
    let reply = reply_of(x.method(), own.unwrap_or(&x.request().fields), content);
    Reply { fields: Some(fields), ..reply }
}

/// The status and body of a stored response for a request with these conditions and this range.
fn reply_of(method: Method, request: &Fields, content: &Content) -> Reply {
    let body = &content.body;
    let whole = Reply { status: content.status, body: body.clone(), ..Reply::default() };
    if content.status != 200 || method == Method::Post {
        return whole;
    }
    if rules::not_modified(request, &content.fields) {
        return Reply::status(304);
    }
    let wanted = match method {
        Method::Get => range::wanted(request, &content.fields, body.len()),
        _ => Wanted::Whole,
    };
    match wanted {
        Wanted::Whole => whole,
        Wanted::Part(from, to) => Reply { status: 206, body: body.slice(from..to), ..whole }
            .header("Content-Range", format!("bytes {from}-{}/{}", to - 1, body.len())),
        Wanted::Nothing => Reply::status(416).header("Content-Range", format!("bytes */{}", body.len())),
    }
}
