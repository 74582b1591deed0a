//! Changes of headers and trailers.

use sdk::{Exchange, Fields};

use super::message::{Changes, Immediate};
use crate::auth::Vouched;
use crate::envoy::headers::{Action, Header, Invalid, is_changeable, remove_from_request};

/// Changes the request's headers. `:path` is that of the upstream; headers of the framing, the host and other names with
/// a colon stay as they are.
pub(super) fn of_request(x: &mut Exchange<'_>, changes: &Changes<'_>) -> Result<(), Invalid> {
    if changes.set.is_empty() && changes.removed.is_empty() {
        return Ok(());
    }
    let mut vouched = x.take_note::<Vouched>().unwrap_or_default();
    let changed = change(x, changes, &mut vouched);
    x.set_note(vouched);
    changed
}

fn change(x: &mut Exchange<'_>, changes: &Changes<'_>, vouched: &mut Vouched) -> Result<(), Invalid> {
    remove_from_request(x, &changes.removed, vouched);
    for header in &changes.set {
        if header.name != ":path" {
            header.change_request(x, vouched)?;
            continue;
        }
        let path = header.value;
        if !path.starts_with(b"/") || !path.iter().all(u8::is_ascii_graphic) || path.contains(&b'#') {
            return Err(Invalid);
        }
        x.set_upstream_uri(path);
    }
    Ok(())
}

/// Changes the response's headers, and its status by `:status`.
pub(super) fn of_response(x: &mut Exchange<'_>, changes: &Changes<'_>) -> Result<(), Invalid> {
    for name in changes.removed.iter().filter(|name| is_changeable(name)) {
        x.remove_response_header(*name);
    }
    for header in &changes.set {
        if header.name != ":status" {
            header.change_response(x)?;
            continue;
        }
        let status = std::str::from_utf8(header.value).ok().and_then(|text| text.parse().ok());
        x.set_status(status.filter(|status| (200..=599).contains(status)).ok_or(Invalid)?);
    }
    Ok(())
}

/// The headers of an immediate response. Those that are invalid, or for which there is no room, are left out: the response
/// is made in any case.
pub(super) fn of_immediate(answer: &Immediate<'_>) -> Fields {
    let mut fields = Fields::new();
    for Header { name, value, action } in &answer.headers.set {
        if !is_changeable(name) || !action.applies(fields.get_named(name.as_bytes()).is_some()) {
            continue;
        }
        let _ = match action {
            Action::Append => fields.append(name.as_bytes(), value),
            _ => fields.set(name.as_bytes(), value),
        };
    }
    if let Some(code) = answer.grpc {
        // The name and value are valid.
        let _ = fields.set(b"Grpc-Status", code.to_string().as_bytes());
    }
    fields
}

/// Changes the request's trailers.
pub(super) fn of_request_trailers(x: &mut Exchange<'_>, changes: &Changes<'_>) -> Result<(), Invalid> {
    changes.removed.iter().for_each(|name| x.remove_request_trailer(name));
    for Header { name, value, action } in &changes.set {
        if action.applies(x.request_trailers().get_named(name.as_bytes()).is_some()) {
            x.set_request_trailer(name, value).map_err(|_| Invalid)?;
        }
    }
    Ok(())
}

/// Changes the response's trailers.
pub(super) fn of_response_trailers(x: &mut Exchange<'_>, changes: &Changes<'_>) -> Result<(), Invalid> {
    changes.removed.iter().for_each(|name| x.remove_response_trailer(name));
    for Header { name, value, action } in &changes.set {
        if action.applies(x.response_trailers().get_named(name.as_bytes()).is_some()) {
            x.set_response_trailer(name, value).map_err(|_| Invalid)?;
        }
    }
    Ok(())
}
