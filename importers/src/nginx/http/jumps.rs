//! `rewrite` to a path that another location serves.

use super::files::Lookup;
use super::{Current, Http};
use crate::Severity;
use crate::nginx::cases::{Case, Outcome, Rewrite, State};
use crate::nginx::directive::Directive;
use crate::nginx::draft::Draft;
use crate::nginx::locations::{self, Location, LocationKind};
use crate::nginx::proxying;
use crate::nginx::scope::Scope;
use crate::nginx::text::{Piece, Text};

/// The most jumps from one location to another that are followed.
const MAX_JUMPS: usize = 5;

impl<'a> Http<'_, 'a> {
    /// Follows a `rewrite` to the location that serves the changed path.
    pub(super) fn jump(
        &mut self,
        current: &Current<'_, 'a>,
        location: &Location<'a>,
        mut state: State<'a>,
        at: &'a Directive,
        rewrite: Rewrite,
        jumps: usize,
    ) -> Draft {
        let (start, is_whole) = match &rewrite.replacement.0[..] {
            [Piece::Literal(text)] => (text.split('?').next().unwrap_or_default(), true),
            [Piece::Literal(text), ..] => (text.split('?').next().unwrap_or_default(), text.contains('?')),
            _ => ("", false),
        };
        let target = locations::target(current.locations, start, is_whole).filter(|_| jumps < MAX_JUMPS);
        let Some(target) = target else {
            let guarded = current.locations.iter().any(|location| is_guarded(&location.scope));
            let severity = if guarded { Severity::Guard } else { Severity::Behaviour };
            let effect =
                "the location that serves the changed path depends on the request; this one serves it";
            self.report.add(at, severity, effect);
            state.rewrites = vec![rewrite];
            return self.outcome(
                current,
                location,
                Case { state, outcome: Outcome::Content },
                None,
                jumps + 1,
            );
        };
        if !is_whole {
            // Such a regular expression has taken the path before it could be changed.
            let is_outer = current.locations.iter().any(|one| std::ptr::eq(one, location));
            let keeps_segment =
                is_outer && location.kind == LocationKind::Prefix && keeps_last_segment(&rewrite);
            let takes_changed = |rival: &&Location<'_>| !(keeps_segment && is_of_last_segment(&rival.path));
            for rival in locations::rivals(current.locations, start).into_iter().filter(takes_changed) {
                let severity = if is_guarded(&rival.scope) { Severity::Guard } else { Severity::Behaviour };
                let effect =
                    format!("changed paths that match `{}` are not served by that location", rival.path);
                self.report.add(at, severity, effect);
            }
        }
        if std::ptr::eq(target, location) {
            state.rewrites = vec![rewrite];
            return self.outcome(
                current,
                location,
                Case { state, outcome: Outcome::Content },
                None,
                jumps + 1,
            );
        }
        let own = target.directive.map_or(&[][..], Directive::children);
        let inner = State::of(&target.scope, state.variables.clone());
        let cases = self.evaluate(current, &[], own, inner);
        let is_split = cases.len() > 1;
        let Some(mut case) = cases.into_iter().last() else { return Draft::default() };
        if !case.state.conditions.is_empty()
            || own.iter().any(|directive| matches!(directive.name.as_str(), "rewrite" | "if"))
        {
            let effect = "conditions and rewrites of the location that serves the changed path do not apply";
            self.report.add(at, Severity::Guard, effect);
        } else if is_split {
            let effect =
                "changed paths get the default values of `map` and `geo`, and reach no other upstreams";
            self.report.add(at, Severity::Behaviour, effect);
        }
        let rewrite = swapped(&rewrite, target, &|name| case.state.lookup(name, &self.declared));
        case.state.rewrites = vec![rewrite];
        self.outcome(current, target, case, None, jumps + 1)
    }
}

/// The rewrite of a path that another location serves, with that location's own prefix exchanged later.
fn swapped(rewrite: &Rewrite, target: &Location<'_>, lookup: Lookup<'_>) -> Rewrite {
    let mut rewrite = rewrite.clone();
    let Some(pass) = target.scope.own("proxy_pass") else { return rewrite };
    let Ok(pass) = proxying::split(pass, lookup) else { return rewrite };
    let uri = pass.uri.as_ref().and_then(Text::constant);
    if let Some(uri) = uri.filter(|_| pass.has_variables) {
        // A path beside variables replaces the whole.
        rewrite.replacement = Text::literal(uri);
        return rewrite;
    }
    if let (Some(uri), Some(Piece::Literal(first))) = (uri, rewrite.replacement.0.first_mut())
        && let Some(rest) = first.strip_prefix(target.path.as_str())
    {
        *first = format!("{uri}{rest}");
    }
    rewrite
}

/// Whether the last segment of a path is the same after the rewrite: what follows a `/` in both is one group.
fn keeps_last_segment(rewrite: &Rewrite) -> bool {
    let Some(before) =
        ["(.*)$", "(.*)", "(.+)$", "(.+)"].iter().find_map(|end| rewrite.pattern.strip_suffix(end))
    else {
        return false;
    };
    let is_first = !before.contains('(') && before.ends_with('/');
    is_first
        && matches!(&rewrite.replacement.0[..], [Piece::Literal(text), Piece::Variable(group)]
            if group == "1" && text.ends_with('/') && !text.contains('?'))
}

/// Whether a regular expression depends on the last segment of a path alone: it can match no `/`, and ends where the
/// path ends.
fn is_of_last_segment(pattern: &str) -> bool {
    let Some(text) = pattern.strip_suffix('$') else { return false };
    let mut depth = 0;
    text.replace("\\.", "").chars().all(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        // Outside of parentheses the end belongs to the last branch alone.
        c.is_ascii_alphanumeric() || "_-()?:".contains(c) || c == '|' && depth > 0
    })
}

fn is_guarded(scope: &Scope<'_>) -> bool {
    ["allow", "deny", "auth_basic", "auth_request", "limit_req", "limit_conn", "auth_jwt"]
        .iter()
        .any(|name| !scope.all(name).is_empty())
}
