//! Models and policies, compiled.
//!
//! A matcher becomes one for each line of the policy, with the fields of the line as constants: patterns are compiled
//! and comparisons of constants decided before any request.

use std::cell::RefCell;

use ::model::Invalid;
use hashbrown::{HashMap, HashSet};

use super::matcher::{Matcher, Scope};
use super::parse;

/// A model and its policy, ready to decide.
#[derive(Debug)]
pub(super) struct Enforcer {
    effect: Effect,
    lines: Vec<Line>,
    graphs: Vec<Graph>,
}

#[derive(Debug)]
struct Line {
    matcher: Matcher,
    effect: LineEffect,
}

/// The effect of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEffect {
    Allow,
    Deny,
    Other,
}

/// How the effects of the lines that match become a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    SomeAllow,
    NoDeny,
    SomeAllowNoDeny,
    /// The first line that allows or denies.
    Priority,
}

/// Roles: for a name, in a domain, the roles that it has directly.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub name: String,
    pub has_domain: bool,
    /// By domain and name.
    links: HashMap<(Text, Text), Vec<Text>>,
}

type Text = Box<[u8]>;

/// A graph, a name and a domain.
type Asked = (usize, Text, Text);

/// How far roles inherit roles, as in Casbin.
const LEVELS: usize = 10;

/// Lines that a policy may have.
const LINES: usize = 100_000;

/// The values of a request, and the roles that were looked up for it.
pub(super) struct Request<'r> {
    pub values: [&'r [u8]; 3],
    graphs: &'r [Graph],
    roles: RefCell<HashMap<Asked, HashSet<&'r [u8]>>>,
}

impl Enforcer {
    /// # Errors
    /// The model or the policy is invalid, with its pointer.
    pub fn compile(model: &str, policy: &str) -> Result<Enforcer, Invalid> {
        let model = parse::model(model).map_err(|why| Invalid::new(why).at("/model"))?;
        let of_policy = |line: usize, why: &str| Invalid::new(format!("line {line}: {why}")).at("/policy");
        let effect = Effect::named(&model.effect).ok_or_else(|| {
            let known = "some(where (p.eft == allow)), !some(where (p.eft == deny)), both with &&, or priority(p.eft) || deny";
            Invalid::new("unknown policy_effect").at("/model").got(model.effect.as_str()).expected(known)
        })?;
        let mut graphs: Vec<Graph> = Vec::new();
        for (name, fields) in &model.roles {
            let has_domain = match fields {
                2 => false,
                3 => true,
                _ => return Err(Invalid::new(format!("role {name} must have 2 or 3 fields")).at("/model")),
            };
            graphs.push(Graph { name: name.clone(), has_domain, ..Graph::default() });
        }
        let mut lines = Vec::new();
        let eft = model.policy.iter().position(|field| field == "eft");
        for (number, fields) in parse::policy(policy) {
            if number > LINES {
                return Err(of_policy(number, "the policy is too long"));
            }
            let (kind, values) = fields.split_first().ok_or_else(|| of_policy(number, "it is empty"))?;
            if let Some(graph) = graphs.iter_mut().find(|graph| graph.name == *kind) {
                graph.add(values).map_err(|why| of_policy(number, why))?;
            } else if kind == "p" {
                let needed = model.policy.len() - usize::from(eft.is_some());
                if values.len() < needed || values.len() > model.policy.len().max(needed + 1) {
                    return Err(of_policy(number, "it does not have the fields of policy_definition"));
                }
                lines.push((number, values.to_vec()));
            } else {
                return Err(of_policy(number, "it begins with no name of the model"));
            }
        }
        let expression = parse::expression(&model.matcher)
            .map_err(|why| Invalid::new(format!("matcher: {why}")).at("/model"))?;
        let compile = |(number, values): (usize, Vec<String>)| {
            let effect = match eft.and_then(|at| values.get(at)).map(String::as_str) {
                None | Some("allow") => LineEffect::Allow,
                Some("deny") => LineEffect::Deny,
                Some(_) => LineEffect::Other,
            };
            let scope =
                Scope { request: &model.request, policy: &model.policy, values: &values, graphs: &graphs };
            let matcher = Matcher::compile(&expression, &scope).map_err(|why| of_policy(number, &why))?;
            Ok(Line { matcher, effect })
        };
        // A mistake in the matcher is found without any line.
        let blank = vec![String::new(); model.policy.len()];
        let scope = Scope { request: &model.request, policy: &model.policy, values: &blank, graphs: &graphs };
        Matcher::compile(&expression, &scope)
            .map_err(|why| Invalid::new(format!("matcher: {why}")).at("/model"))?;
        let mut lines: Vec<Line> = lines.into_iter().map(compile).collect::<Result<_, Invalid>>()?;
        lines.retain(|line| !line.matcher.is_never());
        Ok(Enforcer { effect, lines, graphs })
    }

    /// Lines that are compared with a request.
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    /// Whether the policy accepts a request with this subject, object and action.
    pub fn accepts(&self, values: [&[u8]; 3]) -> bool {
        let request = Request { values, graphs: &self.graphs, roles: RefCell::default() };
        let mut allows = false;
        for line in self.lines.iter().filter(|line| line.effect != LineEffect::Other) {
            // A line that could not change the decision is not compared.
            let is_known = match (self.effect, line.effect) {
                (Effect::SomeAllow, LineEffect::Deny) | (Effect::NoDeny, LineEffect::Allow) => true,
                (Effect::SomeAllowNoDeny, LineEffect::Allow) => allows,
                _ => false,
            };
            if is_known || !line.matcher.holds(&request) {
                continue;
            }
            match (self.effect, line.effect) {
                (Effect::SomeAllow, _) => return true,
                (Effect::NoDeny, _) | (Effect::SomeAllowNoDeny, LineEffect::Deny) => return false,
                (Effect::Priority, effect) => return effect == LineEffect::Allow,
                (Effect::SomeAllowNoDeny, _) => allows = true,
            }
        }
        allows || self.effect == Effect::NoDeny
    }
}

impl Effect {
    fn named(text: &str) -> Option<Effect> {
        let bare: String = text.split_whitespace().collect();
        Some(match &bare[..] {
            "some(where(p.eft==allow))" => Effect::SomeAllow,
            "!some(where(p.eft==deny))" => Effect::NoDeny,
            "some(where(p.eft==allow))&&!some(where(p.eft==deny))" => Effect::SomeAllowNoDeny,
            "priority(p.eft)||deny" => Effect::Priority,
            _ => return None,
        })
    }
}

impl Graph {
    fn add(&mut self, values: &[String]) -> Result<(), &'static str> {
        let boxed = |text: &String| Box::from(text.as_bytes());
        let (name, role, domain) = match values {
            [name, role] if !self.has_domain => (boxed(name), boxed(role), Box::default()),
            [name, role, domain] if self.has_domain => (boxed(name), boxed(role), boxed(domain)),
            _ => return Err("it does not have the fields of role_definition"),
        };
        self.links.entry((domain, name)).or_default().push(role);
        Ok(())
    }

    /// All roles of a name.
    fn roles<'g>(&'g self, name: &[u8], domain: &[u8]) -> HashSet<&'g [u8]> {
        let mut found = HashSet::new();
        let links = |name: &[u8]| self.links.get(&(Box::from(domain), Box::from(name)));
        let mut level: Vec<&[u8]> = links(name).into_iter().flatten().map(|role| &**role).collect();
        for _ in 0..LEVELS {
            level.retain(|role| found.insert(*role));
            level = level.iter().filter_map(|role| links(role)).flatten().map(|role| &**role).collect();
        }
        found
    }
}

impl Request<'_> {
    /// Whether a name is or has a role.
    pub fn has_role(&self, graph: usize, name: &[u8], role: &[u8], domain: &[u8]) -> bool {
        if name == role {
            return true;
        }
        let mut roles = self.roles.borrow_mut();
        let found = roles
            .entry((graph, name.into(), domain.into()))
            .or_insert_with(|| self.graphs[graph].roles(name, domain));
        found.contains(role)
    }
}
