//! Locations that serve files: `root`, `alias`, `index`, `try_files`.

use serde_json::{Map, Value, json};

use super::{Current, Http};
use crate::Severity;
use crate::finding::Place;
use crate::nginx::answers;
use crate::nginx::cases::{Outcome, State};
use crate::nginx::directive::Directive;
use crate::nginx::draft::Draft;
use crate::nginx::locations::{self, Location, LocationKind};
use crate::nginx::parser::is_types;
use crate::nginx::report::Report;
use crate::nginx::scope::Scope;
use crate::nginx::text::{Piece, Text};
use crate::nginx::values;
use crate::output::Setting;

pub(super) type Lookup<'l> = &'l dyn Fn(&str) -> Option<Text>;

/// The folder of a location, and the part of the path that it stands for.
pub(super) struct Spot {
    pub(super) root: String,
    /// The beginning of the path that is left out.
    pub(super) strip: Option<String>,
    /// The one file that the location serves: an exact location with `alias`.
    pub(super) only: Option<String>,
    /// For an `alias` with groups: the pattern of the path and its replacement below the root.
    pub(super) rewrite: Option<[String; 2]>,
}

/// Folders of the system that no site has its files in.
const SYSTEM: [&str; 5] = ["/", "/etc", "/proc", "/sys", "/dev"];

/// The types that nginx knows without a table.
const BUILT_IN: [(&str, &str); 3] = [("html", "text/html"), ("gif", "image/gif"), ("jpg", "image/jpeg")];

impl<'a> Http<'_, 'a> {
    /// A location without a handler: files.
    pub(super) fn files(
        &mut self,
        current: &Current<'_, 'a>,
        location: &Location<'a>,
        state: &State<'a>,
        lookup: Lookup<'_>,
        draft: &mut Draft,
    ) {
        let scope = &state.scope;
        let attempts = location.scope.own("try_files");
        let at = location.scope.own("alias").or(scope.get("root"));
        for name in ["index", "autoindex", "alias", "try_files"] {
            scope.all(name);
        }
        let Some(at) = at else {
            // Without a folder of its own, nginx has its default page at most.
            let named =
                attempts.and_then(|at| Some((at, at.args.last().filter(|last| last.starts_with('@'))?)));
            let fallback = named.and_then(|(at, last)| self.named(current, at, last, state, draft));
            match fallback.as_deref() {
                Some("@upstream") => {}
                Some(code) => answers::page(code[1..].parse().unwrap_or(404), draft),
                None => {
                    draft.is_empty = attempts.is_none();
                    answers::page(404, draft);
                }
            }
            return;
        };
        let Some(spot) = self.spot(at, location, lookup) else {
            return answers::page(501, draft);
        };
        let mut plugin = Map::new();
        self.add_root(&spot.root, at);
        plugin.insert("root".to_owned(), json!(spot.root));
        // nginx serves them; locations of the file keep clients away from some.
        plugin.insert("hidden_files".to_owned(), json!(true));
        self.path(&spot, at, state, draft);
        if let Some(strip) = &spot.strip {
            plugin.insert("strip".to_owned(), json!(strip));
        }
        if let Some(attempts) = attempts {
            let list = self.attempts(current, location, state, attempts, &spot, draft);
            plugin.insert("try_files".to_owned(), json!(list));
        } else if let Some(only) = &spot.only {
            plugin.insert("try_files".to_owned(), json!([format!("/{only}"), "=404"]));
        }
        self.index(current, location, scope, &mut plugin);
        self.media_types(scope, &mut plugin);
        self.expires(scope, &mut plugin);
        if scope.flag("etag") == Some(false) {
            plugin.insert("etag".to_owned(), json!(false));
        }
        if let Some(autoindex) = scope.get("autoindex").filter(|directive| directive.flag() == Some(true)) {
            let effect = "a folder without an index file is not listed: 403";
            self.report.add(autoindex, Severity::Behaviour, effect);
        }
        draft.plugins.insert("static-files".to_owned(), Value::Object(plugin));
    }

    /// Reads the folder of a location. `None` if it cannot be served, which is reported.
    pub(super) fn spot(
        &mut self,
        at: &Directive,
        location: &Location<'_>,
        lookup: Lookup<'_>,
    ) -> Option<Spot> {
        let text = Text::parse(at.arg(0)).fill(lookup);
        let mut spot = Spot { root: String::new(), strip: None, only: None, rewrite: None };
        let is_alias = at.name == "alias";
        match (text.constant(), &location.kind) {
            (Some(folder), LocationKind::Regex { .. }) if is_alias => {
                // Every path of the location is this file.
                let (folder, name) = folder.rsplit_once('/').unwrap_or(("", folder));
                (spot.root, spot.only) = (folder.to_owned(), Some(name.to_owned()));
            }
            (Some(folder), LocationKind::Exact) if is_alias && !folder.ends_with('/') => {
                let (folder, name) = folder.rsplit_once('/').unwrap_or(("", folder));
                (spot.root, spot.only) = (folder.to_owned(), Some(name.to_owned()));
            }
            (Some(folder), _) => {
                spot.root = folder.to_owned();
                spot.strip = is_alias.then(|| location.path.clone());
                if is_alias && location.path.ends_with('/') && !folder.ends_with('/') {
                    let effect = "the path after the location begins in the folder, with a slash between";
                    self.report.add(at, Severity::Behaviour, effect);
                }
            }
            (None, LocationKind::Regex { ignore_case }) if is_alias && text.has_groups() => {
                let pattern = format!("{}{}", if *ignore_case { "(?i)" } else { "" }, location.path);
                let names = crate::nginx::text::group_names(&location.path);
                let text = text.with_groups(&names);
                let only_groups = text.variables().all(crate::nginx::text::is_group);
                let is_whole = location.path.starts_with('^') && location.path.ends_with('$');
                match (&text.0[..], is_whole && only_groups) {
                    ([Piece::Literal(first), ..], true) if first.starts_with('/') => {
                        let root = first.rsplit_once('/').map_or("", |(root, _)| root).to_owned();
                        let replacement = text.template().unwrap_or_default()[root.len()..].to_owned();
                        (spot.root, spot.rewrite) = (root, Some([pattern, replacement]));
                    }
                    _ => {
                        refuse(
                            &mut self.report,
                            at,
                            "the folder depends on the request in a way that is not carried over",
                        );
                        return None;
                    }
                }
            }
            _ => {
                refuse(&mut self.report, at, "the folder depends on the request");
                return None;
            }
        }
        let plain = spot.root.trim_end_matches('/');
        if plain.is_empty() && spot.root.starts_with('/') || SYSTEM.contains(&plain) || spot.root.is_empty() {
            refuse(&mut self.report, at, "a folder of the system is not served");
            return None;
        }
        Some(spot)
    }

    /// The path that files are looked up with, after the rewrites of the location.
    fn path(&mut self, spot: &Spot, at: &Directive, state: &State<'_>, draft: &mut Draft) {
        let mut pairs: Vec<String> = Vec::new();
        for rewrite in &state.rewrites {
            let mut replacement = rewrite.replacement.clone();
            if let Some(Piece::Literal(last)) = replacement.0.last_mut() {
                let end = last.find('?').unwrap_or(last.len());
                last.truncate(end);
            }
            if replacement.variables().any(|name| !crate::nginx::text::is_group(name)) {
                let effect = "variables in a changed path are not carried over beside groups";
                self.report.add(at, Severity::Behaviour, effect);
                replacement.0.retain(|piece| match piece {
                    Piece::Variable(name) => crate::nginx::text::is_group(name),
                    Piece::Literal(_) => true,
                });
            }
            pairs.extend([rewrite.pattern.clone(), replacement.template().unwrap_or_default()]);
        }
        if let Some([pattern, replacement]) = &spot.rewrite {
            if !pairs.is_empty() {
                let effect = "beside a `rewrite`, the groups of the location are not carried over";
                self.report.add(at, Severity::Behaviour, effect);
            } else {
                pairs.extend([pattern.clone(), replacement.clone()]);
            }
        }
        if !pairs.is_empty() {
            draft.rewrite.insert("regex_uri".to_owned(), json!(pairs));
        }
    }

    /// The entries of `try_files`, the last one included.
    fn attempts(
        &mut self,
        current: &Current<'_, 'a>,
        location: &Location<'a>,
        state: &State<'a>,
        at: &'a Directive,
        spot: &Spot,
        draft: &mut Draft,
    ) -> Vec<String> {
        let Some((last, files)) = at.args.split_last() else { return vec!["=404".to_owned()] };
        let lookup = |name: &str| state.variables.get(name).cloned().filter(|_| name != "uri");
        let mut list = Vec::new();
        for file in files {
            let text = Text::parse(file).fill(&lookup);
            match text.template() {
                Ok(text) if !Text::parse(&text).has_groups() => list.push(text),
                _ => self.report.add(at, Severity::Behaviour, format!("`{file}` is not looked up")),
            }
        }
        let fallback = match last.strip_prefix('=') {
            Some(code) if code.parse().is_ok_and(|code: u16| (400..600).contains(&code)) => last.clone(),
            Some(_) => {
                self.report.add(at, Severity::Behaviour, "the last answer is 404");
                "=404".to_owned()
            }
            None if last.starts_with('@') => match self.named(current, at, last, state, draft) {
                Some(fallback) => fallback,
                None => "=501".to_owned(),
            },
            None => return self.last_path(current, location, at, last, spot, list),
        };
        list.push(fallback);
        list
    }

    /// The last entry of `try_files` if it is a path, which nginx gives to the location of that path.
    fn last_path(
        &mut self,
        current: &Current<'_, 'a>,
        location: &Location<'a>,
        at: &Directive,
        last: &str,
        spot: &Spot,
        mut list: Vec<String>,
    ) -> Vec<String> {
        let path = last.split('?').next().unwrap_or_default();
        let target = match path.contains('$') {
            true => None,
            false => locations::target(current.locations, path, true),
        };
        let same = |target: &Location<'_>| std::ptr::eq(target, location);
        match target {
            Some(target) if same(target) => {
                let below = spot.strip.as_deref().and_then(|strip| path.strip_prefix(strip));
                list.push(format!("/{}", below.unwrap_or(path).trim_start_matches('/')));
                list.push("=404".to_owned());
            }
            Some(target)
                if serves_files(&target.scope) && root_of(&target.scope) == Some(spot.root.as_str()) =>
            {
                if has_own_settings(target) {
                    let effect =
                        format!("settings of the location `{}` do not apply to this file", target.path);
                    let severity = if is_guarded(target) { Severity::Guard } else { Severity::Behaviour };
                    self.report.add(at, severity, effect);
                }
                list.push(path.to_owned());
                list.push("=404".to_owned());
            }
            _ => {
                let effect = format!("where no file is found, requests get 501 in place of `{path}`");
                self.report.add(at, Severity::Behaviour, effect);
                list.push("=501".to_owned());
            }
        }
        list
    }

    /// The named location that answers where no file is found. Returns the last entry of the list.
    pub(super) fn named(
        &mut self,
        current: &Current<'_, 'a>,
        at: &Directive,
        name: &str,
        state: &State<'a>,
        draft: &mut Draft,
    ) -> Option<String> {
        let found = current.locations.iter().find(|one| one.kind == LocationKind::Named && one.path == name);
        let Some(target) = found else {
            self.report.add(at, Severity::Behaviour, format!("there is no location `{name}`: 501"));
            return None;
        };
        let own = target.directive.map_or(&[][..], Directive::children);
        let inner = State::of(&target.scope, state.variables.clone());
        let case = self.evaluate(current, &[], own, inner).into_iter().next_back()?;
        if has_own_settings(target) {
            let severity = if is_guarded(target) { Severity::Guard } else { Severity::Behaviour };
            let effect = format!("settings of the location `{name}` besides its content do not apply");
            self.report.add(at, severity, effect);
        }
        let is_proxied = ["proxy_pass", "grpc_pass"].iter().any(|name| case.state.scope.own(name).is_some());
        match case.outcome {
            Outcome::Content if is_proxied && case.state.conditions.is_empty() => {
                let declared = self.declared.clone();
                let lookup = |name: &str| case.state.lookup(name, &declared);
                if !state.rewrites.is_empty() || !case.state.rewrites.is_empty() {
                    let effect = "rewrites apply before files are looked up";
                    self.report.add(at, Severity::Behaviour, effect);
                }
                self.content(current, target, &case.state, &lookup, draft);
                Some("@upstream".to_owned())
            }
            Outcome::Return(answer)
                if answer.args.len() == 1
                    && answer.arg(0).parse().is_ok_and(|code: u16| (400..600).contains(&code)) =>
            {
                Some(format!("={}", answer.arg(0)))
            }
            _ => {
                let effect = format!("where no file is found, requests get 501 in place of `{name}`");
                self.report.add(at, Severity::Behaviour, effect);
                None
            }
        }
    }

    /// `index`. A file that another location would answer for is left out: it may be a program.
    fn index(
        &mut self,
        current: &Current<'_, 'a>,
        location: &Location<'a>,
        scope: &Scope<'a>,
        plugin: &mut Map<String, Value>,
    ) {
        let index = scope.get("index");
        if location.kind == LocationKind::Exact && !location.path.ends_with('/') {
            // No folder has this path.
            return;
        }
        let names: Vec<String> = match index {
            Some(index) => index.args.clone(),
            None => vec!["index.html".to_owned()],
        };
        let mut kept: Vec<String> = Vec::new();
        for name in &names {
            let at = index.or(location.directive).unwrap_or(current.server.directive);
            if name.contains(['/', '$']) || kept.len() == 16 {
                self.report.add(at, Severity::Behaviour, format!("`{name}` is not looked up in folders"));
                continue;
            }
            let folder =
                if location.path.starts_with('/') { location.path.trim_end_matches('/') } else { "" };
            let target = locations::target(current.locations, &format!("{folder}/{name}"), true);
            // The folders of a regular expression are seldom known.
            let is_regex = matches!(location.kind, LocationKind::Regex { .. });
            let other = target.filter(|target| {
                let same = is_regex || root_of(&target.scope) == root_of(scope);
                !std::ptr::eq(*target, location) && (!serves_files(&target.scope) || !same)
            });
            match (other, target) {
                (Some(other), _) => {
                    let effect = format!(
                        "`{name}` is not looked up in folders, since the location `{}` answers for it",
                        other.path
                    );
                    self.report.add(at, Severity::Behaviour, effect);
                    continue;
                }
                (None, Some(target))
                    if !is_regex && !std::ptr::eq(target, location) && has_own_settings(target) =>
                {
                    let severity = if is_guarded(target) { Severity::Guard } else { Severity::Behaviour };
                    let effect =
                        format!("settings of the location `{}` do not apply to folders", target.path);
                    self.report.add(at, severity, effect);
                }
                _ => {}
            }
            kept.push(name.clone());
        }
        if kept != ["index.html"] {
            plugin.insert("index".to_owned(), json!(kept));
        }
    }

    fn media_types(&mut self, scope: &Scope<'_>, plugin: &mut Map<String, Value>) {
        let default = scope.get("default_type").map_or("text/plain", |directive| directive.arg(0));
        let includes_table = scope
            .levels()
            .iter()
            .any(|level| level.directives.iter().any(|one| one.name == "include" && is_types(one.arg(0))));
        // A file of conf.d is included in one that has the table.
        if self.is_snippet && scope.get("types").is_none() {
            return;
        }
        if !default.is_empty() {
            plugin.insert("default_type".to_owned(), json!(default));
        }
        let mut types = Map::new();
        let own = scope.levels().iter().rev().find_map(|level| {
            let mut blocks = level.directives.iter().filter(|one| one.name == "types").peekable();
            blocks.peek().is_some().then(|| blocks.collect::<Vec<_>>())
        });
        match own {
            Some(blocks) => {
                for block in blocks {
                    block.mark_all_used();
                    for kind in block.children() {
                        types.extend(kind.args.iter().map(|ending| (ending.clone(), json!(kind.name))));
                    }
                }
            }
            None if includes_table => return,
            None => types.extend(BUILT_IN.map(|(ending, kind)| (ending.to_owned(), json!(kind)))),
        }
        plugin.insert("types".to_owned(), Value::Object(types));
    }

    /// `expires`, which the plugin sends as nginx does.
    fn expires(&mut self, scope: &Scope<'_>, plugin: &mut Map<String, Value>) {
        let Some(expires) = scope.get("expires") else { return };
        let seconds = match (expires.arg(0), expires.args.len()) {
            ("off", 1) => return,
            ("epoch", 1) => Some(-1.0),
            ("max", 1) => Some(315_360_000.0),
            (time, 1) => match time.strip_prefix('-') {
                Some(time) => values::seconds(time).map(|seconds| -seconds.max(1.0)),
                None => values::seconds(time.trim_start_matches('+')),
            },
            _ => None,
        };
        match seconds.filter(|seconds| seconds.abs() <= 3_153_600_000.0) {
            Some(seconds) => _ = plugin.insert("expires".to_owned(), json!(seconds as i64)),
            None => {
                self.report.add(expires, Severity::Behaviour, "not carried over: the time is not a plain one")
            }
        }
    }

    pub(super) fn add_root(&mut self, root: &str, at: &Directive) {
        if !root.starts_with('/') {
            let effect = "a relative folder begins in the folder of the file";
            self.report.add(at, Severity::Cosmetic, effect);
        }
        let folder = root.trim_end_matches('/');
        if !self.roots.iter().any(|(known, _)| known == folder) {
            self.roots.push((folder.to_owned(), at.place.clone()));
        }
    }

    /// The setting that permits the folders of the file.
    pub(in crate::nginx) fn roots_setting(&self) -> Option<Setting> {
        let (_, place): &(String, Place) = self.roots.first()?;
        let roots: Vec<&str> = self.roots.iter().map(|(root, _)| root.as_str()).collect();
        let path = "plugin_attr.static-files.roots".to_owned();
        Some(Setting { path, value: json!(roots), place: place.clone() })
    }
}

fn refuse(report: &mut Report, at: &Directive, effect: &str) {
    let hint = "serve these files from a web server behind the gateway";
    let effect = format!("{effect}: requests get 501");
    report.add_with_hint(at, Severity::Behaviour, effect, Some(hint));
}

/// Whether a location has no handler of another kind.
pub(super) fn serves_files(scope: &Scope<'_>) -> bool {
    let Some(own) = scope.levels().last() else { return false };
    !own.directives.iter().any(|one| {
        super::HANDLERS.contains(&one.name.as_str()) || matches!(one.name.as_str(), "return" | "rewrite")
    })
}

/// The folder of a location without `alias`.
fn root_of<'a>(scope: &Scope<'a>) -> Option<&'a str> {
    let own = scope.levels().last()?;
    if own.directives.iter().any(|one| one.name == "alias") {
        return None;
    }
    scope.get("root").map(|root| root.arg(0))
}

/// Whether a location has directives that change what its content does not.
fn has_own_settings(location: &Location<'_>) -> bool {
    const NAMES: [&str; 5] = ["add_header", "expires", "default_type", "types", "limit_rate"];
    NAMES.iter().any(|name| location.scope.own(name).is_some()) || is_guarded(location)
}

fn is_guarded(location: &Location<'_>) -> bool {
    const NAMES: [&str; 12] = [
        "allow",
        "deny",
        "auth_basic",
        "auth_request",
        "auth_jwt",
        "limit_req",
        "limit_conn",
        // Conditions may refuse requests.
        "if",
        "limit_except",
        "secure_link",
        "secure_link_secret",
        "valid_referers",
    ];
    NAMES.iter().any(|name| location.scope.own(name).is_some())
}
