//! Limits on recalls: how much users, groups and volumes may recall in a time.
//!
//! 1. **One rule for each subject counts.** A rule for the user comes before the rule for each
//!    user. Of the groups of a caller, the first rule counts. Of the patterns of volumes, the one
//!    with the most literal characters counts. A recall must be within all three.
//! 2. **An account has what was recalled under a rule.** Each user has its own account under
//!    `user:*`, and each volume under a pattern. The members of a group share one account.
//! 3. **Accounts empty evenly.** Under `2T/1d` an account loses 2 TiB a day. A recall is within the
//!    rule if the account has room for the bytes of the file. A file that is larger than the limit
//!    needs an empty account, and fills it.
//! 4. **A recall counts when it begins**, also if it fails later. Callers that join a recall use
//!    nothing.
//! 5. Accounts are in memory, of this server, and end with it. Administrators have no limits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellar_wire::ids::ViceId;
use parking_lot::Mutex;

use crate::access::Identity;
use crate::limits::{RECALL_ACCOUNTS_MAX, RECALL_NAMES_REFRESH, RECALL_REFUSAL_LOG};
use crate::protection::{Protection, ProtectionError};

/// Fractions of a byte or file that accounts count, as a power of two. Without them, an account of
/// a few files would lose nothing between two recalls.
const FRACTION_BITS: u32 = 20;
/// The longest time of a rule.
pub const RECALL_LIMIT_TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// A limit on recalls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecallLimit {
    /// The rule as the configuration has it, for the log.
    pub text: String,
    /// The users, group or volumes that it limits.
    pub subject: RecallSubject,
    /// Bytes in that time.
    pub bytes: Option<u64>,
    /// Files in that time.
    pub files: Option<u64>,
    /// The time; from a second to [`RECALL_LIMIT_TIME_MAX`].
    pub per: Duration,
}

/// The subject of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecallSubject {
    /// The user of that name.
    User(String),
    /// Each user for itself.
    EachUser,
    /// All members of the group of that name together.
    Group(String),
    /// Each volume whose name matches the pattern, for itself. `*` and `?` stand for characters.
    Volumes(String),
}

/// A recall that is over a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OverLimit {
    /// The rule.
    pub(crate) rule: String,
    /// The time after which the account has room for the file; `None`: never.
    pub(crate) again: Option<Duration>,
    /// Whether no refusal of this account was logged a short time ago.
    pub(crate) is_news: bool,
}

/// The limits of a file server.
#[derive(Default)]
pub(crate) struct RecallLimits(Mutex<State>);

#[derive(Default)]
struct State {
    rules: Arc<Vec<RecallLimit>>,
    /// The ids of the names in rules; `None`: the cell has no such user or group.
    ids: HashMap<String, Option<ViceId>>,
    /// When the ids were loaded.
    loaded: Option<Duration>,
    accounts: HashMap<AccountKey, Account>,
}

/// A rule by its text, and its subject.
type AccountKey = (String, Holder);

/// The holder of an account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Holder {
    User(ViceId),
    Group,
    Volume(String),
}

/// What was recalled under a rule.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    bytes: Use,
    files: Use,
    /// When a refusal was logged last.
    logged: Option<Duration>,
}

/// An amount that empties evenly.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// In fractions, see [`FRACTION_BITS`].
    used: u128,
    at: Duration,
}

impl Use {
    /// The amount at a time, in fractions.
    fn at(&self, limit: u64, per: Duration, now: Duration) -> u128 {
        let elapsed = now.saturating_sub(self.at).min(per).as_millis();
        let lost = (u128::from(limit) << FRACTION_BITS) * elapsed / per.as_millis().max(1);
        self.used.saturating_sub(lost)
    }

    /// The time after which `amount` is within the limit; zero: now. `None`: never.
    fn wait(&self, limit: u64, per: Duration, now: Duration, amount: u64) -> Option<Duration> {
        let used = self.at(limit, per, now);
        let limit = u128::from(limit) << FRACTION_BITS;
        let room = limit.saturating_sub(u128::from(amount) << FRACTION_BITS);
        let excess = used.saturating_sub(room);
        match (limit, excess) {
            (0, _) => None,
            (_, 0) => Some(Duration::ZERO),
            (limit, excess) => {
                let millis = excess * per.as_millis() / limit + 1;
                Some(Duration::from_millis(
                    u64::try_from(millis).unwrap_or(u64::MAX),
                ))
            }
        }
    }

    fn add(&mut self, limit: u64, per: Duration, now: Duration, amount: u64) {
        let amount = u128::from(amount.min(limit)) << FRACTION_BITS;
        self.used = self.at(limit, per, now).saturating_add(amount);
        self.at = now;
    }
}

impl Account {
    /// The time after which a recall of a file of `bytes` is within the rule. `None`: never.
    fn wait(&self, rule: &RecallLimit, now: Duration, bytes: u64) -> Option<Duration> {
        let mut longest = Duration::ZERO;
        if let Some(limit) = rule.bytes {
            longest = longest.max(self.bytes.wait(limit, rule.per, now, bytes)?);
        }
        if let Some(limit) = rule.files {
            longest = longest.max(self.files.wait(limit, rule.per, now, 1)?);
        }
        Some(longest)
    }

    fn add(&mut self, rule: &RecallLimit, now: Duration, bytes: u64) {
        if let Some(limit) = rule.bytes {
            self.bytes.add(limit, rule.per, now, bytes);
        }
        if let Some(limit) = rule.files {
            self.files.add(limit, rule.per, now, 1);
        }
    }

    /// The time at which it was last used.
    fn last_use(&self) -> Duration {
        let logged = self.logged.unwrap_or_default();
        self.bytes.at.max(self.files.at).max(logged)
    }
}

impl RecallLimits {
    /// Replaces the rules. Accounts of rules that stay keep their amounts.
    pub(crate) fn set(&self, rules: Vec<RecallLimit>) {
        let mut state = self.0.lock();
        let is_kept = |key: &AccountKey| rules.iter().any(|rule| rule.text == key.0);
        state.accounts.retain(|key, _| is_kept(key));
        state.ids.clear();
        state.loaded = None;
        state.rules = Arc::new(rules);
    }

    /// Loads the ids of the names in the rules, unless they are known.
    ///
    /// # Errors
    /// The protection database does not answer, and the ids were never loaded.
    pub(crate) async fn load_names(
        &self,
        protection: &dyn Protection,
        now: Duration,
    ) -> Result<(), ProtectionError> {
        let (rules, known) = {
            let state = self.0.lock();
            (state.rules.clone(), state.loaded)
        };
        let is_fresh = |loaded| now.saturating_sub(loaded) < RECALL_NAMES_REFRESH;
        let names: Vec<&str> = rules.iter().filter_map(RecallLimit::name).collect();
        if names.is_empty() || known.is_some_and(is_fresh) {
            return Ok(());
        }
        let asked: Vec<Bytes> = names
            .iter()
            .map(|name| Bytes::copy_from_slice(name.as_bytes()))
            .collect();
        let ids = match protection.ids_of(&asked).await {
            Ok(ids) => ids,
            Err(_) if known.is_some() => return Ok(()),
            Err(cause) => return Err(cause),
        };
        let mut state = self.0.lock();
        if !Arc::ptr_eq(&state.rules, &rules) {
            // A reload came in between; the next recall loads the new names.
            return Ok(());
        }
        for (name, id) in names.iter().zip(ids) {
            let before = state.ids.insert((*name).to_owned(), id);
            if id.is_none() && before != Some(None) {
                tracing::warn!(
                    name,
                    "a limit of recalls names no user or group of the cell"
                );
            }
        }
        state.loaded = Some(now);
        Ok(())
    }

    /// Enters a recall into the accounts of a caller and a volume.
    ///
    /// # Errors
    /// It is over a limit. No account has changed then.
    pub(crate) fn take(
        &self,
        caller: &Identity,
        volume: &str,
        bytes: u64,
        now: Duration,
    ) -> Result<(), OverLimit> {
        if caller.administrator {
            return Ok(());
        }
        let mut state = self.0.lock();
        let state = &mut *state;
        let rules = state.rules.clone();
        let counting = [
            user_rule(&rules, &state.ids, caller.id),
            group_rule(&rules, &state.ids, caller),
            volume_rule(&rules, head_name(volume)),
        ];
        let counting: Vec<(&RecallLimit, Holder)> = counting.into_iter().flatten().collect();
        for (rule, holder) in &counting {
            let account = state.account(rule, holder.clone(), now);
            let wait = account.wait(rule, now, bytes);
            if wait != Some(Duration::ZERO) {
                let logged = account.logged;
                let is_news = logged.is_none_or(|at| now.saturating_sub(at) >= RECALL_REFUSAL_LOG);
                if is_news {
                    account.logged = Some(now);
                }
                return Err(OverLimit {
                    rule: rule.text.clone(),
                    again: wait,
                    is_news,
                });
            }
        }
        for (rule, holder) in counting {
            state.account(rule, holder, now).add(rule, now, bytes);
        }
        Ok(())
    }
}

impl State {
    /// An account. If there are too many, those that are empty go, and then the one that was not
    /// used for longest.
    fn account(&mut self, rule: &RecallLimit, holder: Holder, now: Duration) -> &mut Account {
        let key = (rule.text.clone(), holder);
        if self.accounts.len() >= RECALL_ACCOUNTS_MAX && !self.accounts.contains_key(&key) {
            let rules = self.rules.clone();
            self.accounts.retain(|(text, _), account| {
                let rule = rules.iter().find(|rule| rule.text == *text);
                rule.is_some_and(|rule| now.saturating_sub(account.last_use()) < rule.per)
            });
            if self.accounts.len() >= RECALL_ACCOUNTS_MAX {
                let oldest = self.accounts.iter().min_by_key(|(_, a)| a.last_use());
                let oldest = oldest.map(|(key, _)| key.clone());
                oldest.map(|key| self.accounts.remove(&key));
            }
        }
        self.accounts.entry(key).or_default()
    }
}

impl RecallLimit {
    /// The name of a user or group in it.
    fn name(&self) -> Option<&str> {
        match &self.subject {
            RecallSubject::User(name) | RecallSubject::Group(name) => Some(name),
            RecallSubject::EachUser | RecallSubject::Volumes(_) => None,
        }
    }
}

type Ids = HashMap<String, Option<ViceId>>;

/// The rule for a user.
fn user_rule<'a>(
    rules: &'a [RecallLimit],
    ids: &Ids,
    user: ViceId,
) -> Option<(&'a RecallLimit, Holder)> {
    let is_own = |rule: &&RecallLimit| match &rule.subject {
        RecallSubject::User(name) => ids.get(name) == Some(&Some(user)),
        _ => false,
    };
    let own = rules.iter().find(is_own);
    let of_all = || {
        let mut rules = rules.iter();
        rules.find(|rule| rule.subject == RecallSubject::EachUser)
    };
    Some((own.or_else(of_all)?, Holder::User(user)))
}

/// The first rule for a group of a caller, or of its host.
fn group_rule<'a>(
    rules: &'a [RecallLimit],
    ids: &Ids,
    caller: &Identity,
) -> Option<(&'a RecallLimit, Holder)> {
    let is_member = |group: ViceId| {
        let host = caller.host_cps.as_ref();
        caller.cps.contains(group) || host.is_some_and(|host| host.contains(group))
    };
    let rule = rules.iter().find(|rule| match &rule.subject {
        RecallSubject::Group(name) => ids.get(name).copied().flatten().is_some_and(is_member),
        _ => false,
    })?;
    Some((rule, Holder::Group))
}

/// The rule with the most literal characters that matches a volume.
fn volume_rule<'a>(rules: &'a [RecallLimit], volume: &str) -> Option<(&'a RecallLimit, Holder)> {
    let mut best: Option<(usize, &RecallLimit)> = None;
    for rule in rules {
        let RecallSubject::Volumes(pattern) = &rule.subject else {
            continue;
        };
        // A name without wildcards comes before a pattern of as many characters.
        let literal = pattern.chars().filter(|c| !matches!(c, '*' | '?')).count();
        let rank = 2 * literal + usize::from(!pattern.contains(['*', '?']));
        if matches(pattern.as_bytes(), volume.as_bytes())
            && best.is_none_or(|(before, _)| rank > before)
        {
            best = Some((rank, rule));
        }
    }
    let (_, rule) = best?;
    Some((rule, Holder::Volume(volume.to_owned())))
}

/// The name of the RW volume of a volume. Its RO and backup volumes share its account.
fn head_name(name: &str) -> &str {
    let cut = name
        .strip_suffix(".readonly")
        .or_else(|| name.strip_suffix(".backup"));
    cut.unwrap_or(name)
}

/// Whether a name matches a pattern of `*`, `?` and literal bytes. Takes at most the product of
/// both lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The position behind the last `*`, and that of the name at which it ends.
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = name.get(n) {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                star = Some((p, n));
            }
            Some(wanted) if *wanted == b'?' || wanted == byte => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((behind, end)) => {
                    star = Some((behind, end + 1));
                    (p, n) = (behind, end + 1);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests;
