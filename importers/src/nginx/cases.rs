//! The rewrite module: `set`, `if`, `return`, `rewrite` and `break` as cases.
//!
//! A location with conditions becomes several routes. Each case has the conditions that hold in it;
//! the cases are tried in order, and the last one of each branch has no condition of its own.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::condition::{self, Condition};
use super::directive::Directive;
use super::maps::Maps;
use super::report::Report;
use super::scope::Scope;
use super::text::{Text, group_names};
use crate::Severity;

/// The most routes that one location becomes.
const MAX_CASES: usize = 64;

/// A part of the requests of a location, and the state of the rewrite module for them.
#[derive(Clone)]
pub(super) struct State<'a> {
    pub scope: Scope<'a>,
    /// They hold for these requests, in the language of `vars`.
    pub conditions: Vec<Value>,
    /// Variables whose value is known.
    pub variables: BTreeMap<String, Text>,
    /// Replacements of the path; the first that matches counts.
    pub rewrites: Vec<Rewrite>,
    /// The regular expression whose groups `$1` and so on are.
    pub groups: Groups,
}

impl<'a> State<'a> {
    /// All requests of a location, with these variables known.
    pub fn of(scope: &Scope<'a>, variables: BTreeMap<String, Text>) -> State<'a> {
        let scope = scope.clone();
        State { scope, conditions: Vec::new(), variables, rewrites: Vec::new(), groups: Groups::None }
    }
}

/// The origin of groups.
#[derive(Clone, PartialEq)]
pub(super) enum Groups {
    None,
    /// A match of the path.
    Path(String),
    /// A match of another variable, whose groups the gateway does not keep.
    Other,
}

/// A pattern for the path, and its replacement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rewrite {
    pub pattern: String,
    pub replacement: Text,
}

/// A case and its outcome.
pub(super) struct Case<'a> {
    pub state: State<'a>,
    pub outcome: Outcome<'a>,
}

pub(super) enum Outcome<'a> {
    /// The location's content: an upstream, files.
    Content,
    Return(&'a Directive),
    Redirect {
        at: &'a Directive,
        rewrite: Rewrite,
        status: u16,
    },
    /// Another location serves the changed path.
    Jump {
        at: &'a Directive,
        rewrite: Rewrite,
    },
}

/// An evaluation of directives, with all that it needs.
pub(super) struct Evaluation<'e, 'a> {
    pub maps: &'e Maps<'a>,
    /// Variables of any `set`: empty where none was executed.
    pub declared: &'e BTreeSet<String>,
    /// The names of the server, if it has no others.
    pub hosts: &'e [String],
    /// Variables in the keys of limits.
    pub limited: &'e [String],
    pub report: &'e mut Report,
    pub cases: Vec<Case<'a>>,
}

impl State<'_> {
    /// The value of a variable that is known while importing.
    pub(super) fn lookup(&self, name: &str, declared: &BTreeSet<String>) -> Option<Text> {
        self.variables.get(name).cloned().or_else(|| declared.contains(name).then(Text::default))
    }
}

/// Directives that remain to be executed, the next one last.
type Queue<'a> = Vec<Op<'a>>;

#[derive(Clone, Copy)]
enum Op<'a> {
    Run(&'a Directive),
    /// The server's directives are done, and the location's begin.
    Location,
}

impl<'a> Evaluation<'_, 'a> {
    /// Evaluates the server's and the location's directives for one state.
    pub(super) fn run(&mut self, server: &'a [Directive], location: &'a [Directive], state: State<'a>) {
        let mut queue: Queue<'a> = Vec::new();
        queue.extend(rewriting(location).rev().map(Op::Run));
        queue.push(Op::Location);
        queue.extend(rewriting(server).rev().map(Op::Run));
        for state in self.split_by_maps(&queue, state) {
            self.step(queue.clone(), state, false);
        }
    }

    /// Splits a state by the values of the maps that its directives use.
    fn split_by_maps(&mut self, queue: &Queue<'a>, state: State<'a>) -> Vec<State<'a>> {
        let mut names = self.limited.to_vec();
        for op in queue {
            if let Op::Run(directive) = op {
                variables_of(directive, &mut names);
            }
        }
        for name in USES {
            for directive in state.scope.all(name) {
                // The value of this field is the gateway's own matter.
                if directive.arg(0).eq_ignore_ascii_case("connection") {
                    continue;
                }
                variables_of(directive, &mut names);
            }
        }
        let mut states = vec![state];
        for name in self.maps.needed(names) {
            let Some(map) = self.maps.get(&name) else { continue };
            if map.shares().is_some() {
                let effect = "shares of requests, not of clients, get each value";
                self.report.add(map.directive, Severity::Behaviour, effect);
            }
            let mut split = Vec::new();
            for state in &states {
                let declared = self.declared;
                match map.values(&|name| state.lookup(name, declared)) {
                    Ok(values) if split.len() + values.len() <= MAX_CASES => {
                        for (condition, value) in values {
                            let mut state = state.clone();
                            state.conditions.extend(condition);
                            state.variables.insert(name.clone(), value);
                            split.push(state);
                        }
                    }
                    Ok(_) => {
                        let effect =
                            format!("its values would make more than {MAX_CASES} routes of a location");
                        self.report.add(map.directive, Severity::Behaviour, effect);
                        split.push(state.clone());
                    }
                    Err(reason) => {
                        self.report.add(
                            map.directive,
                            Severity::Behaviour,
                            format!("not carried over: {reason}"),
                        );
                        split.push(state.clone());
                    }
                }
            }
            states = split;
        }
        states
    }

    fn step(&mut self, mut queue: Queue<'a>, mut state: State<'a>, in_location: bool) {
        let mut in_location = in_location;
        while let Some(op) = queue.pop() {
            let Op::Run(directive) = op else {
                in_location = true;
                continue;
            };
            directive.mark_used();
            match directive.name.as_str() {
                "set" => self.set(directive, &mut state),
                "break" if in_location => break,
                "break" => queue.retain({
                    let mut seen = false;
                    let at = queue.iter().position(|op| matches!(op, Op::Location)).unwrap_or(0);
                    let mut index = 0;
                    move |_| {
                        seen |= index > at;
                        index += 1;
                        !seen
                    }
                }),
                "return" => {
                    self.emit(directive, state, Outcome::Return(directive));
                    return;
                }
                "rewrite" => match self.rewrite(directive, &queue, &mut state, in_location) {
                    Next::Continue => {}
                    Next::Serve => break,
                    Next::Ended => return,
                },
                "if" => self.branch(directive, &mut queue, &mut state, in_location),
                _ => {}
            }
        }
        self.push(Case { state, outcome: Outcome::Content });
    }

    fn set(&mut self, directive: &'a Directive, state: &mut State<'a>) {
        let Some(name) = directive.arg(0).strip_prefix('$') else { return };
        let declared = self.declared;
        let value = Text::parse(directive.arg(1));
        let names = match &state.groups {
            Groups::Path(pattern) => group_names(pattern),
            _ => Vec::new(),
        };
        let value = value.with_groups(&names).fill(&|name| state.lookup(name, declared));
        if value.has_groups() && state.groups == Groups::Other {
            self.report.add(
                directive,
                Severity::Behaviour,
                "groups of a match of another variable than the path are not carried over",
            );
        }
        state.variables.insert(name.to_owned(), value);
    }

    /// Executes an `if`.
    fn branch(
        &mut self,
        directive: &'a Directive,
        queue: &mut Queue<'a>,
        state: &mut State<'a>,
        in_location: bool,
    ) {
        let parts = condition::parts(&directive.args);
        let declared = self.declared;
        let translated = condition::translate(&parts, &|name| state.lookup(name, declared));
        let enter = |state: &mut State<'a>, queue: &mut Queue<'a>| {
            if let Some(block) = &directive.block {
                state.scope = state.scope.within(block);
                queue.extend(rewriting(&block.directives).rev().map(Op::Run));
            }
            if let [left, operator, pattern] = &parts[..]
                && operator.starts_with('~')
            {
                let pattern = format!("{}{pattern}", if operator == "~*" { "(?i)" } else { "" });
                state.groups = if left == "$uri" { Groups::Path(pattern) } else { Groups::Other };
            }
        };
        match translated {
            Ok(Condition::Constant(true)) => {
                enter(state, queue);
            }
            Ok(Condition::Constant(false)) => {
                rewriting(directive.children()).for_each(Directive::mark_all_used);
            }
            Ok(Condition::Vars(vars)) => {
                if self.branch_by_host(directive, &parts, queue, state, in_location) {
                    return;
                }
                if self.cases.len() >= MAX_CASES {
                    self.too_many(directive);
                    return;
                }
                let (mut yes, mut rest) = (state.clone(), queue.clone());
                yes.conditions.push(vars);
                enter(&mut yes, &mut rest);
                self.step(rest, yes, in_location);
            }
            Err(reason) => {
                directive.mark_all_used();
                let refuses = |inner: &Directive| {
                    inner.name == "return" && inner.arg(0).starts_with('4') || inner.name == "deny"
                };
                let severity = match directive.children().iter().any(refuses) {
                    true => Severity::Guard,
                    false => Severity::Behaviour,
                };
                self.report.add(directive, severity, format!("not carried over: {reason}"));
            }
        }
    }

    /// `if ($host ~ …)` whose groups are used: one case for each name of the server that matches.
    fn branch_by_host(
        &mut self,
        directive: &'a Directive,
        parts: &[String],
        queue: &Queue<'a>,
        state: &State<'a>,
        in_location: bool,
    ) -> bool {
        let [variable, operator, pattern] = parts else { return false };
        let is_host = variable == "$host" || variable == "$http_host";
        if !is_host || !operator.starts_with('~') || self.hosts.is_empty() {
            return false;
        }
        let Some(block) = &directive.block else { return false };
        let uses_groups = block.directives.iter().any(|inner| {
            let mut names = Vec::new();
            variables_of(inner, &mut names);
            let groups = group_names(pattern);
            names
                .iter()
                .any(|name| super::text::is_group(name) || groups.iter().any(|(group, _)| group == name))
        });
        let Some(regex) = condition::compile(pattern, operator == "~*").filter(|_| uses_groups) else {
            return false;
        };
        for host in self.hosts {
            let Some(found) = regex.captures(host) else { continue };
            let (mut yes, mut rest) = (state.clone(), queue.clone());
            yes.conditions.push(json!(["host", "==", host]));
            for (number, name) in regex.capture_names().enumerate() {
                let text = Text::literal(found.get(number).map_or("", |group| group.as_str()));
                if let Some(name) = name {
                    yes.variables.insert(name.to_owned(), text.clone());
                }
                yes.variables.insert(number.to_string(), text);
            }
            yes.scope = yes.scope.within(block);
            rest.extend(rewriting(&block.directives).rev().map(Op::Run));
            self.step(rest, yes, in_location);
        }
        true
    }

    fn rewrite(
        &mut self,
        directive: &'a Directive,
        queue: &Queue<'a>,
        state: &mut State<'a>,
        in_location: bool,
    ) -> Next {
        let pattern = directive.arg(0).to_owned();
        let declared = self.declared;
        let replacement = Text::parse(directive.arg(1))
            .with_groups(&group_names(&pattern))
            .fill(&|name| if super::text::is_group(name) { None } else { state.lookup(name, declared) });
        let rewrite = Rewrite { pattern: pattern.clone(), replacement };
        let target = directive.arg(1);
        let absolute = ["http://", "https://", "$scheme"].iter().any(|start| target.starts_with(start));
        let flag = directive.arg(2);
        state.groups = Groups::Path(pattern.clone());
        let status = match flag {
            "permanent" => Some(301),
            "redirect" => Some(302),
            _ if absolute => Some(302),
            _ => None,
        };
        let always = condition::compile(&pattern, false).is_some_and(|regex| matches_any(&regex, &pattern));
        // The other rewrites of this block are of the same kind: a list of pairs is enough.
        let only_breaks = queue.iter().all(|op| match op {
            Op::Run(next) => next.name == "rewrite" && next.arg(2) == "break",
            Op::Location => false,
        });
        if status.is_none() && flag == "break" && in_location {
            if always {
                state.rewrites.push(rewrite);
                return Next::Serve;
            }
            if self.cases.len() >= MAX_CASES {
                match only_breaks {
                    true => state.rewrites.push(rewrite),
                    false => self.too_many(directive),
                }
                return Next::Continue;
            }
            // The upstream gets the target of other requests as it came.
            let mut yes = state.clone();
            yes.conditions.push(json!(["uri", "~~", pattern]));
            yes.rewrites.push(rewrite);
            self.push(Case { state: yes, outcome: Outcome::Content });
            return Next::Continue;
        }
        if self.cases.len() >= MAX_CASES {
            self.too_many(directive);
            return Next::Continue;
        }
        let mut yes = state.clone();
        if !always {
            yes.conditions.push(json!(["uri", "~~", pattern]));
        }
        let outcome = match status {
            Some(status) => Outcome::Redirect { at: directive, rewrite, status },
            None => Outcome::Jump { at: directive, rewrite },
        };
        let flagless = status.is_none() && flag.is_empty() && queue.iter().any(|op| matches!(op, Op::Run(_)));
        if flagless {
            let effect = "the directives after this `rewrite` without a flag do not see the changed path";
            self.report.add(directive, Severity::Behaviour, effect);
        }
        self.push(Case { state: yes, outcome });
        if always { Next::Ended } else { Next::Continue }
    }

    fn emit(&mut self, directive: &'a Directive, mut state: State<'a>, outcome: Outcome<'a>) {
        let texts = directive.args.iter().map(|arg| Text::parse(arg));
        if state.groups == Groups::Other
            && !state.variables.contains_key("1")
            && texts.into_iter().any(|text| text.has_groups())
        {
            self.report.add(
                directive,
                Severity::Behaviour,
                "groups of a match of another variable than the path are not carried over",
            );
            state.variables.extend((0..10).map(|number: u8| (number.to_string(), Text::default())));
        }
        self.push(Case { state, outcome });
    }

    fn push(&mut self, case: Case<'a>) {
        if self.cases.len() < 2 * MAX_CASES {
            self.cases.push(case);
        }
    }

    fn too_many(&mut self, directive: &Directive) {
        directive.mark_all_used();
        let effect = format!("not carried over: the location would become more than {MAX_CASES} routes");
        self.report.add(directive, Severity::Guard, effect);
    }
}

enum Next {
    Continue,
    /// The location's content follows.
    Serve,
    /// No request is left.
    Ended,
}

/// Directives of the location whose values may have variables of maps.
const USES: [&str; 14] = [
    "proxy_pass",
    "grpc_pass",
    "proxy_set_header",
    "grpc_set_header",
    "add_header",
    "auth_basic",
    "auth_basic_user_file",
    "root",
    "alias",
    "expires",
    "proxy_cache_bypass",
    "proxy_no_cache",
    "proxy_cache_key",
    "limit_rate",
];

/// The directives of the rewrite module.
fn rewriting(directives: &[Directive]) -> impl DoubleEndedIterator<Item = &Directive> {
    directives
        .iter()
        .filter(|directive| matches!(directive.name.as_str(), "set" | "if" | "return" | "rewrite" | "break"))
}

/// The variables in a directive's values, and in those of its block.
pub(super) fn variables_of(directive: &Directive, names: &mut Vec<String>) {
    for arg in &directive.args {
        names.extend(Text::parse(arg.trim_start_matches('(')).variables().map(str::to_owned));
    }
    directive.children().iter().for_each(|inner| variables_of(inner, names));
}

/// Whether a pattern matches every path.
fn matches_any(regex: &regex::Regex, pattern: &str) -> bool {
    let plain = [
        "^", "^/", "^(.*)$", "^(.*)", "(.*)", ".*", "^.*$", "^.*", "^/(.*)$", "^/(.*)", "^/.*", "^/.*$", "/",
    ];
    plain.contains(&pattern.replace("\\/", "/").as_str()) && regex.is_match("/")
}
