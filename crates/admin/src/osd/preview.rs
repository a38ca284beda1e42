//! `osd policy test`: where a file would be stored, and which rule decides that.
//!
//! The answer comes from the code of the file server: the compiled policies, and the choice of
//! devices.

use cellar_objects::placement::{Degraded, LOCAL_DISK, PlacementRequest, choose, choose_degraded};
use cellar_policy::{Facts, Form, Policies, Reason, StorageTarget, Verdict};
use serde::Serialize;

use super::Osds;
use crate::error::Result;

/// A hypothetical file.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Its name.
    pub name: String,
    /// The path of its directory in the volume.
    pub directory: String,
    /// The volume's name.
    pub volume: String,
    /// Its length in bytes.
    pub size: u64,
    /// The policies that apply: the volume's, then the directory's.
    pub policies: Vec<u32>,
    /// The ids of the caller that stores it.
    pub ids: Vec<i32>,
    /// Its owner.
    pub owner: i32,
    /// Its group.
    pub group: i32,
}

/// A rule that took part in the decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DecidingRule {
    /// The policy of the rule.
    pub policy: u32,
    /// The name of the policy.
    pub name: String,
    /// The number of the rule, from 1; 0: the policy as a whole.
    pub rule: u32,
    /// The rule, or a remark.
    pub text: String,
}

/// The result of the test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preview {
    /// The file would be stored in objects.
    pub in_objects: bool,
    /// The decision of the policies: `local`, `osd` or `dynamic`.
    pub location: &'static str,
    /// The layout in words, if the file would be stored in objects.
    pub shape: Option<String>,
    /// The class of devices.
    pub class: Option<String>,
    /// The number of archives that get a copy.
    pub archives: u32,
    /// The class of archives.
    pub archive_class: Option<String>,
    /// Seconds from the last change to the first copy.
    pub archive_after: u32,
    /// The behaviour of opening the file while it is wiped: `wait`, `retry` or `refuse`.
    pub recall: &'static str,
    /// The rules that matched, in order.
    pub rules: Vec<DecidingRule>,
    /// An example of the devices that could be chosen now.
    pub devices: Vec<u32>,
    /// The difference from the policies' wish, if devices are unavailable.
    pub less: Option<String>,
    /// The reason why no devices could be chosen.
    pub problem: Option<String>,
    /// With `dynamic`, files up to this size stay local, in bytes.
    pub threshold: u64,
}

impl Preview {
    /// The text for users.
    pub fn text(&self, size: u64) -> String {
        let mut text = String::new();
        for rule in &self.rules {
            let place = match rule.rule {
                0 => String::new(),
                number => format!(", rule {number}"),
            };
            text.push_str(&format!(
                "Policy {} ({}){place}: {}\n",
                rule.policy, rule.name, rule.text
            ));
        }
        if self.rules.is_empty() {
            text.push_str("No rule matches.\n");
        }
        let (size, limit) = (
            cellar_policy::bytes(size),
            cellar_policy::bytes(self.threshold),
        );
        let why = match (self.location, self.in_objects) {
            ("dynamic", true) => format!(", for {size} is more than {limit}"),
            ("dynamic", false) => format!(", for {size} is not more than {limit}"),
            _ => String::new(),
        };
        match &self.shape {
            Some(shape) if self.in_objects => {
                let class = self.class.as_ref();
                let class = class.map_or(String::new(), |class| {
                    format!(", on devices of class {class}")
                });
                text.push_str(&format!("The file goes to objects{why}: {shape}{class}.\n"));
            }
            _ => text.push_str(&format!(
                "The file stays on the file server's own disk{why}.\n"
            )),
        }
        if self.in_objects && self.archives > 0 {
            let class = self.archive_class.as_ref();
            let class = class.map_or(String::new(), |class| format!(" of class {class}"));
            let plural = if self.archives == 1 { "" } else { "s" };
            text.push_str(&format!(
                "Copies go to {} archive{plural}{class}, {} after the last change.\n",
                self.archives,
                cellar_policy::time(self.archive_after)
            ));
        }
        if self.in_objects {
            text.push_str(match self.recall {
                "retry" => "If it is wiped, opening it begins its recall, and clients try again.\n",
                "refuse" => "If it is wiped, opening it fails; 'cellar hsm prefetch' recalls it.\n",
                _ => "",
            });
        }
        if let Some(problem) = &self.problem {
            text.push_str(&format!("That fails at the moment: {problem}.\n"));
        } else if !self.devices.is_empty() {
            let devices: Vec<String> = self.devices.iter().map(u32::to_string).collect();
            text.push_str(&format!("Devices, for example: {}.\n", devices.join(" ")));
        }
        if let Some(less) = &self.less {
            text.push_str(&format!("Devices are away: {less}.\n"));
        }
        text
    }
}

impl Osds<'_> {
    /// Predicts the storage of a file under these policies.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn preview(&self, policies: &Policies, question: &Question) -> Result<Preview> {
        let facts = Facts {
            name: question.name.as_bytes(),
            directory: question.directory.as_bytes(),
            volume: question.volume.as_bytes(),
            size: question.size,
            ids: &question.ids,
            owner: question.owner,
            group: question.group,
        };
        let verdict = policies.evaluate(&question.policies, &facts);
        let (_, devices) = self.listed().await?;
        let threshold = devices
            .iter()
            .find(|device| device.entry.id == LOCAL_DISK)
            .map_or(0, |local| local.entry.max_size);
        let in_objects = match verdict.place {
            StorageTarget::Local => false,
            StorageTarget::Objects => true,
            StorageTarget::BySize => question.size > threshold,
        };
        let shape = verdict.shape.unwrap_or_default();
        let wish = PlacementRequest {
            shape,
            size: question.size,
            class: verdict.class.clone().unwrap_or_default(),
            ..PlacementRequest::default()
        };
        let chosen = in_objects.then(|| choose(&devices, &wish, &mut rand::rng()));
        let (devices, less, problem) = match chosen {
            None => (Vec::new(), None, None),
            Some(Ok(devices)) => (devices, None, None),
            Some(Err(none)) => match choose_degraded(&devices, &wish, &mut rand::rng()) {
                Ok(made) => (made.devices.clone(), Some(less_than(&wish, &made)), None),
                Err(_) => (Vec::new(), None, Some(none.to_string())),
            },
        };
        Ok(Preview {
            in_objects,
            location: verdict.place.word(),
            shape: in_objects.then(|| cellar_policy::shape(&shape)),
            class: verdict.class.clone().filter(|_| in_objects),
            archives: verdict.archiving.archives,
            archive_class: verdict.archiving.class.clone(),
            archive_after: verdict.archiving.after,
            recall: verdict.archiving.recall.word(),
            rules: decided(policies, &verdict),
            devices,
            less,
            problem,
            threshold,
        })
    }
}

/// The difference between the wished and the possible layout.
fn less_than(wish: &PlacementRequest, made: &Degraded) -> String {
    let (wanted, stripes) = (wish.shape.stripes, made.shape.stripes);
    let mut parts = Vec::new();
    if stripes < wanted {
        parts.push(format!("the file gets {stripes} of {wanted} stripes"));
    }
    if made.missing > 0 {
        parts.push(format!("{} of its objects are made later", made.missing));
    }
    parts.join(", ")
}

fn decided(policies: &Policies, verdict: &Verdict) -> Vec<DecidingRule> {
    let name = |id| policies.name(id).unwrap_or("?").to_owned();
    let reasons = verdict.why.iter().map(|reason| match *reason {
        Reason::VolumeUsesNone => DecidingRule {
            policy: 0,
            name: name(0),
            rule: 0,
            text: "the volume does not use objects".to_owned(),
        },
        Reason::Missing { policy } => DecidingRule {
            policy,
            name: "?".to_owned(),
            rule: 0,
            text: "there is no such policy; it has no effect".to_owned(),
        },
        Reason::Rule { policy, rule, .. } => DecidingRule {
            policy,
            name: name(policy),
            rule,
            text: policies
                .rule(*reason)
                .map(|rule| rule.print(Form::Human))
                .unwrap_or_default(),
        },
    });
    reasons.collect()
}
