//! Changes of headers and trailers.

use sdk::{Exchange, Fields};

use super::message::{Action, Changes, Header, Immediate};
use crate::auth::Vouched;
use crate::ext_authz::is_changeable;

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
    for name in changes.removed.iter().filter(|name| is_changeable(name)) {
        x.remove_lookalikes(*name);
        x.remove_header(*name);
        vouched.add(name.as_bytes());
    }
    for Header { name, value, action } in &changes.set {
        if *name == ":path" {
            if !value.starts_with(b"/") || !value.iter().all(u8::is_ascii_graphic) || value.contains(&b'#') {
                return Err(Invalid);
            }
            x.set_upstream_uri(value);
            continue;
        }
        if !is_changeable(name) || !applies(*action, x.header(*name).is_some()) {
            continue;
        }
        let changed = match action {
            Action::Append => x.add_header(*name, value),
            _ => {
                x.remove_lookalikes(*name);
                x.set_header(*name, value)
            }
        };
        changed.map_err(|_| Invalid)?;
        [name.as_bytes(), value].into_iter().for_each(|part| vouched.add(part));
    }
    Ok(())
}

/// Changes the response's headers, and its status by `:status`.
pub(super) fn of_response(x: &mut Exchange<'_>, changes: &Changes<'_>) -> Result<(), Invalid> {
    for name in changes.removed.iter().filter(|name| is_changeable(name)) {
        x.remove_response_header(*name);
    }
    for Header { name, value, action } in &changes.set {
        if *name == ":status" {
            let status = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            x.set_status(status.filter(|status| (200..=599).contains(status)).ok_or(Invalid)?);
            continue;
        }
        if !is_changeable(name) || !applies(*action, x.response_header(*name).is_some()) {
            continue;
        }
        let changed = match action {
            Action::Append => x.add_response_header(*name, value),
            _ => x.set_response_header(*name, value),
        };
        changed.map_err(|_| Invalid)?;
    }
    Ok(())
}

/// The headers of an immediate response. Those that are invalid, or for which there is no room, are left out: the response
/// is made in any case.
pub(super) fn of_immediate(answer: &Immediate<'_>) -> Fields {
    let mut fields = Fields::new();
    for Header { name, value, action } in &answer.headers.set {
        if !is_changeable(name) || !applies(*action, fields.get_named(name.as_bytes()).is_some()) {
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
        if applies(*action, x.request_trailers().get_named(name.as_bytes()).is_some()) {
            x.set_request_trailer(name, value).map_err(|_| Invalid)?;
        }
    }
    Ok(())
}

/// Changes the response's trailers.
pub(super) fn of_response_trailers(x: &mut Exchange<'_>, changes: &Changes<'_>) -> Result<(), Invalid> {
    changes.removed.iter().for_each(|name| x.remove_response_trailer(name));
    for Header { name, value, action } in &changes.set {
        if applies(*action, x.response_trailers().get_named(name.as_bytes()).is_some()) {
            x.set_response_trailer(name, value).map_err(|_| Invalid)?;
        }
    }
    Ok(())
}

/// A name or value is invalid.
#[derive(Debug)]
pub(super) struct Invalid;

fn applies(action: Action, is_there: bool) -> bool {
    match action {
        Action::Replace | Action::Append => true,
        Action::AddIfAbsent => !is_there,
        Action::ReplaceIfPresent => is_there,
    }
}
