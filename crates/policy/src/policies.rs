//! The policies of a cell, compiled together, and their evaluation for a file.
//!
//! 1. One automaton holds all patterns for names, a second those for directories, a third those for
//!    volumes. The first condition that needs an automaton runs it once; its result serves all
//!    other conditions of that evaluation. So fifty patterns cost as much as one, and nothing if no
//!    evaluated condition needs them.
//! 2. Compilation finds all faults: wrong texts, missing policies, circles, and policies that grow
//!    without limit by using each other. Evaluation cannot fail.
//! 3. `stop` ends its policy and the policies that use it. The directory's policy is evaluated in
//!    any case.

use std::cell::OnceCell;
use std::collections::HashMap;

use cellar_wire::object::Shape;
use cellar_wire::osddb::PolicyEntry;
use regex_automata::meta::Regex;
use regex_automata::{Input, MatchKind, PatternSet};

use crate::archiving::{ARCHIVE_AFTER, Archiving};
use crate::error::{ParseError, PolicyError};
use crate::pattern::Pattern;
use crate::rule::{Condition, Outcome, Policy, Rule, StorageTarget, Verdict as Said};

/// The most rules of a policy and of all that it uses, counted as often as they are used.
pub const RULES_MAX: usize = 10_000;
/// The most nested uses.
pub const USES_DEEP_MAX: usize = 32;
/// The most bytes of an automaton.
const AUTOMATON_BYTES_MAX: usize = 64 << 20;
/// The empty policy: the size of a file decides.
pub const BY_SIZE: u32 = 1;

/// The facts about a file that is stored. [`Policies::needs`] tells which of them are needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// Its name, without directories.
    pub name: &'a [u8],
    /// The path of its directory in the volume; `/` is the volume's root.
    pub directory: &'a [u8],
    /// The name of the volume.
    pub volume: &'a [u8],
    /// The length that it will have, in bytes.
    pub size: u64,
    /// The ids of the user who stores it and of the user's groups (the CPS).
    pub ids: &'a [i32],
    /// The id of its owner.
    pub owner: i32,
    /// Its group, as `chgrp` sets it.
    pub group: i32,
}

/// Which facts the conditions of some policies ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// [`Facts::name`]
    pub name: bool,
    /// [`Facts::directory`]
    pub directory: bool,
    /// [`Facts::volume`]
    pub volume: bool,
    /// [`Facts::ids`]
    pub ids: bool,
    /// [`Facts::owner`] and [`Facts::group`]
    pub owner: bool,
}

impl Needs {
    fn or(self, other: Self) -> Self {
        Self {
            name: self.name | other.name,
            directory: self.directory | other.directory,
            volume: self.volume | other.volume,
            ids: self.ids | other.ids,
            owner: self.owner | other.owner,
        }
    }
}

/// The outcome of the policies for a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The location of its bytes.
    pub place: StorageTarget,
    /// Their distribution; `None`: no rule names it.
    pub shape: Option<Shape>,
    /// Devices of that class only; `None`: of any.
    pub class: Option<String>,
    /// The copies in archives, and the recalls from them.
    pub archiving: Archiving,
    /// The rules that matched, in order.
    pub why: Vec<Reason>,
}

/// A step of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The volume's policy is 0: it does not use objects at all.
    VolumeUsesNone,
    /// The policy does not exist and has no effect.
    Missing {
        /// Which.
        policy: u32,
    },
    /// A rule matched.
    Rule {
        /// The policy that has it.
        policy: u32,
        /// Which of its rules, from 1.
        rule: u32,
        /// It ended its policy.
        stop: bool,
    },
}

/// The policies of a cell.
#[derive(Debug, Default)]
pub struct Policies {
    compiled: HashMap<u32, Compiled>,
    names: Matcher,
    directories: Matcher,
    volumes: Matcher,
}

#[derive(Debug)]
struct Compiled {
    name: String,
    source: Policy,
    steps: Vec<Step>,
    /// Also of those that it uses.
    needs: Needs,
    /// The highest number of archives that a rule names, also of policies that it uses.
    archives_max: u32,
}

#[derive(Debug)]
enum Step {
    Use(u32),
    Test {
        test: Option<Test>,
        said: Said,
        stop: bool,
    },
}

/// A condition whose patterns are numbers in an automaton.
#[derive(Debug)]
enum Test {
    Not(Box<Test>),
    All(Vec<Test>),
    Any(Vec<Test>),
    AtLeast(u64),
    AtMost(u64),
    Name(usize),
    Directory(usize),
    Volume(usize),
    Member(i32),
    Owner(i32),
    Group(i32),
}

impl Policies {
    /// Compiles the policies of a cell.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn compile(entries: &[PolicyEntry]) -> Result<Self, PolicyError> {
        let mut read = Vec::with_capacity(entries.len());
        for entry in entries {
            let name = entry.name.to_string();
            let parsed = match entry.text.as_str() {
                Some(text) => Policy::parse(text),
                None => Err(ParseError {
                    line: 1,
                    column: 1,
                    expected: "UTF-8".into(),
                    found: "other bytes".into(),
                }),
            };
            let source = parsed.map_err(|error| PolicyError::Syntax {
                id: entry.id,
                name: name.clone(),
                error,
            })?;
            read.push((entry.id, name, source));
        }
        Self::of(read)
    }

    /// Compiles policies that have been read: number, name, rules.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn of(read: Vec<(u32, String, Policy)>) -> Result<Self, PolicyError> {
        let mut names = Patterns::default();
        let mut directories = Patterns::default();
        let mut volumes = Patterns::default();
        let mut compiled = HashMap::with_capacity(read.len());
        for (id, name, source) in read {
            if id <= BY_SIZE {
                return Err(PolicyError::Reserved { id });
            }
            let mut needs = Needs::default();
            let mut lower = Lower {
                names: &mut names,
                directories: &mut directories,
                volumes: &mut volumes,
                needs: &mut needs,
            };
            let steps = source.rules.iter().map(|rule| lower.rule(rule)).collect();
            let policy = Compiled {
                name,
                source,
                steps,
                needs,
                archives_max: 0,
            };
            if compiled.insert(id, policy).is_some() {
                return Err(PolicyError::Twice { id });
            }
        }
        let uses = compiled.iter().map(|(id, policy): (&u32, &Compiled)| {
            let own = policy.steps.len();
            (*id, (own, policy.uses()))
        });
        crate::uses::check(&uses.collect())?;
        let all = |id: &u32| {
            let needs = needs_with_uses(&compiled, *id);
            (*id, needs, archives_with_uses(&compiled, *id))
        };
        let found: Vec<_> = compiled.keys().map(all).collect();
        for (id, needs, archives_max) in found {
            if let Some(policy) = compiled.get_mut(&id) {
                policy.needs = needs;
                policy.archives_max = archives_max;
            }
        }
        Ok(Self {
            compiled,
            names: names.compile()?,
            directories: directories.compile()?,
            volumes: volumes.compile()?,
        })
    }

    /// Whether there is a policy of that number, or one that needs no text.
    pub fn contains(&self, id: u32) -> bool {
        id <= BY_SIZE || self.compiled.contains_key(&id)
    }

    /// The name of a policy.
    pub fn name(&self, id: u32) -> Option<&str> {
        match id {
            0 => Some("none"),
            BY_SIZE => Some("by size"),
            id => Some(&self.compiled.get(&id)?.name),
        }
    }

    /// The rules of a policy.
    pub fn policy(&self, id: u32) -> Option<&Policy> {
        self.compiled.get(&id).map(|policy| &policy.source)
    }

    /// The rules of a policy with those that it uses in the places where it does.
    pub fn unrolled(&self, id: u32) -> Option<Policy> {
        let mut rules = Vec::new();
        self.unroll(self.policy(id)?, &mut rules);
        Some(Policy { rules })
    }

    fn unroll(&self, policy: &Policy, rules: &mut Vec<Rule>) {
        for rule in &policy.rules {
            match rule {
                Rule::Use(used) => {
                    if let Some(used) = self.policy(*used) {
                        self.unroll(used, rules);
                    }
                }
                rule => rules.push(rule.clone()),
            }
        }
    }

    /// The rule of a step.
    pub fn rule(&self, reason: Reason) -> Option<&Rule> {
        match reason {
            Reason::Rule { policy, rule, .. } => {
                let rules = &self.policy(policy)?.rules;
                rules.get((rule as usize).checked_sub(1)?)
            }
            _ => None,
        }
    }

    /// Returns the facts that these policies, and those that they use, need.
    pub fn needs(&self, ids: &[u32]) -> Needs {
        let mut needs = Needs::default();
        for policy in ids.iter().filter_map(|id| self.compiled.get(id)) {
            needs = needs.or(policy.needs);
        }
        needs
    }

    /// The highest number of archives that a rule of these policies, or of those that they use,
    /// names. 0: no file that they apply to is copied to archives.
    pub fn archives_max(&self, ids: &[u32]) -> u32 {
        let known = ids.iter().filter_map(|id| self.compiled.get(id));
        known.map(|policy| policy.archives_max).max().unwrap_or(0)
    }

    /// Evaluates the policies of a file's volume and directory, in this order. If the first is 0,
    /// the volume does not use objects, and nothing else counts. A later 0, and 1, have no effect.
    /// If no policy has one, the size decides.
    pub fn evaluate(&self, ids: &[u32], facts: &Facts<'_>) -> Verdict {
        if ids.first() == Some(&0) {
            return Verdict {
                place: StorageTarget::Local,
                why: vec![Reason::VolumeUsesNone],
                ..Verdict::default()
            };
        }
        let mut run = Run {
            policies: self,
            facts,
            names: OnceCell::new(),
            directories: OnceCell::new(),
            volumes: OnceCell::new(),
            outcome: Outcome::default(),
            why: Vec::new(),
        };
        for &id in ids.iter().filter(|id| **id > BY_SIZE) {
            match self.compiled.get(&id) {
                Some(policy) => {
                    run.policy(id, policy);
                }
                None => run.why.push(Reason::Missing { policy: id }),
            }
        }
        Verdict {
            place: run.outcome.place.unwrap_or_default(),
            shape: run.outcome.shape(),
            class: run.outcome.class.filter(|class| !class.is_empty()),
            archiving: Archiving {
                archives: run.outcome.archives.unwrap_or_default(),
                class: run.outcome.archive_class.filter(|class| !class.is_empty()),
                after: run.outcome.archive_after.unwrap_or(ARCHIVE_AFTER),
                recall: run.outcome.recall.unwrap_or_default(),
            },
            why: run.why,
        }
    }
}

/// Returns the highest number of archives that a policy, and those that it uses, name. There are no
/// circles.
fn archives_with_uses(compiled: &HashMap<u32, Compiled>, id: u32) -> u32 {
    let Some(policy) = compiled.get(&id) else {
        return 0;
    };
    let archives = |outcome: &Outcome| outcome.archives.unwrap_or_default();
    let of_rule = |rule: &Rule| match rule {
        Rule::Use(used) => archives_with_uses(compiled, *used),
        Rule::When { verdict, .. } => match verdict {
            Said::Plain(outcome) => archives(outcome),
            Said::Steps(steps) => {
                let steps = steps.iter().map(|(_, outcome)| archives(outcome));
                steps.max().unwrap_or_default()
            }
        },
    };
    let rules = policy.source.rules.iter();
    rules.map(of_rule).max().unwrap_or_default()
}

/// Returns the facts that a policy and those that it uses need. There are no circles.
fn needs_with_uses(compiled: &HashMap<u32, Compiled>, id: u32) -> Needs {
    let Some(policy) = compiled.get(&id) else {
        return Needs::default();
    };
    let used = policy.uses().into_iter();
    used.fold(policy.needs, |needs, id| {
        needs.or(needs_with_uses(compiled, id))
    })
}

impl Compiled {
    fn uses(&self) -> Vec<u32> {
        let used = self.steps.iter().filter_map(|step| match step {
            Step::Use(used) => Some(*used),
            Step::Test { .. } => None,
        });
        used.collect()
    }
}

/// One evaluation.
struct Run<'a> {
    policies: &'a Policies,
    facts: &'a Facts<'a>,
    names: OnceCell<PatternSet>,
    directories: OnceCell<PatternSet>,
    volumes: OnceCell<PatternSet>,
    outcome: Outcome,
    why: Vec<Reason>,
}

impl Run<'_> {
    /// Runs a policy; `true`: it was stopped. Circles and depth were checked when it was compiled.
    fn policy(&mut self, id: u32, policy: &Compiled) -> bool {
        for (index, step) in policy.steps.iter().enumerate() {
            let stopped = match step {
                Step::Use(used) => match self.policies.compiled.get(used) {
                    Some(policy) => self.policy(*used, policy),
                    None => false,
                },
                Step::Test { test, said, stop } => {
                    let holds = test.as_ref().is_none_or(|test| self.holds(test));
                    if holds {
                        self.apply_verdict(said);
                        let rule = index as u32 + 1;
                        let (policy, stop) = (id, *stop);
                        self.why.push(Reason::Rule { policy, rule, stop });
                    }
                    holds && *stop
                }
            };
            if stopped {
                return true;
            }
        }
        false
    }

    fn apply_verdict(&mut self, said: &Said) {
        match said {
            Said::Plain(outcome) => self.outcome.overwrite(outcome),
            Said::Steps(steps) => {
                let size = self.facts.size;
                if let Some((_, outcome)) = steps.iter().rev().find(|(from, _)| *from <= size) {
                    self.outcome.overwrite(outcome);
                }
            }
        }
    }

    fn holds(&self, test: &Test) -> bool {
        let facts = self.facts;
        match test {
            Test::Not(test) => !self.holds(test),
            Test::All(tests) => tests.iter().all(|test| self.holds(test)),
            Test::Any(tests) => tests.iter().any(|test| self.holds(test)),
            Test::AtLeast(size) => facts.size >= *size,
            Test::AtMost(size) => facts.size <= *size,
            Test::Name(number) => self.policies.names.finds(&self.names, facts.name, *number),
            Test::Directory(number) => {
                let directories = &self.policies.directories;
                directories.finds(&self.directories, facts.directory, *number)
            }
            Test::Volume(number) => {
                self.policies
                    .volumes
                    .finds(&self.volumes, facts.volume, *number)
            }
            Test::Member(id) => facts.ids.contains(id),
            Test::Owner(id) => facts.owner == *id,
            Test::Group(id) => facts.group == *id,
        }
    }
}

/// An automaton of many patterns.
#[derive(Debug, Default)]
struct Matcher(Option<Regex>);

impl Matcher {
    /// Whether pattern `number` matches; `found` keeps what all of them do.
    fn finds(&self, found: &OnceCell<PatternSet>, text: &[u8], number: usize) -> bool {
        let Some(automaton) = &self.0 else {
            return false;
        };
        let found = found.get_or_init(|| {
            let mut found = PatternSet::new(automaton.pattern_len());
            automaton.which_overlapping_matches(&Input::new(text), &mut found);
            found
        });
        regex_automata::PatternID::new(number).is_ok_and(|number| found.contains(number))
    }
}

/// Patterns that go into one automaton, each once.
#[derive(Default)]
struct Patterns {
    numbers: HashMap<Pattern, usize>,
}

impl Patterns {
    fn number(&mut self, pattern: &Pattern) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry(pattern.clone()).or_insert(next)
    }

    fn compile(self) -> Result<Matcher, PolicyError> {
        if self.numbers.is_empty() {
            return Ok(Matcher(None));
        }
        let mut patterns: Vec<_> = self.numbers.into_iter().collect();
        patterns.sort_by_key(|(_, number)| *number);
        let hirs: Result<Vec<_>, String> =
            patterns.iter().map(|(pattern, _)| pattern.hir()).collect();
        let config = Regex::config()
            .match_kind(MatchKind::All)
            .utf8_empty(false)
            .which_captures(regex_automata::nfa::thompson::WhichCaptures::None)
            .nfa_size_limit(Some(AUTOMATON_BYTES_MAX));
        let built = Regex::builder()
            .configure(config)
            .build_many_from_hir(&hirs.map_err(PolicyError::Patterns)?);
        match built {
            Ok(automaton) => Ok(Matcher(Some(automaton))),
            Err(error) => Err(PolicyError::Patterns(error.to_string())),
        }
    }
}

/// Turns rules into steps.
struct Lower<'a> {
    names: &'a mut Patterns,
    directories: &'a mut Patterns,
    volumes: &'a mut Patterns,
    needs: &'a mut Needs,
}

impl Lower<'_> {
    fn rule(&mut self, rule: &Rule) -> Step {
        match rule {
            Rule::Use(used) => Step::Use(*used),
            Rule::When {
                condition,
                verdict,
                stop,
            } => Step::Test {
                test: condition.as_ref().map(|condition| self.test(condition)),
                said: verdict.clone(),
                stop: *stop,
            },
        }
    }

    fn test(&mut self, condition: &Condition) -> Test {
        match condition {
            Condition::Not(inner) => Test::Not(Box::new(self.test(inner))),
            Condition::All(parts) => Test::All(parts.iter().map(|part| self.test(part)).collect()),
            Condition::Any(parts) => Test::Any(parts.iter().map(|part| self.test(part)).collect()),
            Condition::AtLeast(size) => Test::AtLeast(*size),
            Condition::AtMost(size) => Test::AtMost(*size),
            Condition::Name(pattern) => {
                self.needs.name = true;
                Test::Name(self.names.number(pattern))
            }
            Condition::Directory(pattern) => {
                self.needs.directory = true;
                Test::Directory(self.directories.number(pattern))
            }
            Condition::Volume(pattern) => {
                self.needs.volume = true;
                Test::Volume(self.volumes.number(pattern))
            }
            Condition::User(id) | Condition::Group(id) => {
                self.needs.ids = true;
                Test::Member(*id)
            }
            Condition::Owner(id) => {
                self.needs.owner = true;
                Test::Owner(*id)
            }
            Condition::OwnerGroup(id) => {
                self.needs.owner = true;
                Test::Group(*id)
            }
        }
    }
}
