//! The uses of policies by each other: no missing ones, no circles, no growth without limit.

use std::collections::HashMap;

use crate::error::PolicyError;
use crate::policies::{RULES_MAX, USES_DEEP_MAX};

/// The state of the check of one policy.
#[derive(Clone, Copy)]
enum VisitState {
    /// It leads to the policy that is checked now: a use of it is a circle.
    Open,
    /// Rules and depth, with all that it uses.
    Done { rules: usize, deep: usize },
}

/// A policy's own rules, and those that it uses, in order.
pub(crate) type Uses = HashMap<u32, (usize, Vec<u32>)>;

/// Checks all policies, in the order of their numbers, so that the same policies always give the
/// same error.
pub(crate) fn check(uses: &Uses) -> Result<(), PolicyError> {
    let mut seen = HashMap::new();
    let mut ids: Vec<u32> = uses.keys().copied().collect();
    ids.sort_unstable();
    for id in ids {
        visit(uses, id, &mut seen, &mut Vec::new())?;
    }
    Ok(())
}

/// Rules and depth of one policy. `path`: those that lead to it.
fn visit(
    uses: &Uses,
    id: u32,
    seen: &mut HashMap<u32, VisitState>,
    path: &mut Vec<u32>,
) -> Result<(usize, usize), PolicyError> {
    match seen.get(&id) {
        Some(VisitState::Done { rules, deep }) => return Ok((*rules, *deep)),
        Some(VisitState::Open) => {
            let begins = path.iter().position(|passed| *passed == id).unwrap_or(0);
            return Err(PolicyError::Cycle(
                path.get(begins..).unwrap_or_default().to_vec(),
            ));
        }
        None => {}
    }
    let Some((own, used)) = uses.get(&id) else {
        let user = path.last().copied().unwrap_or(id);
        return Err(PolicyError::Missing { id: user, used: id });
    };
    let too_large = PolicyError::TooLarge {
        id: path.first().copied().unwrap_or(id),
        limit: RULES_MAX,
        depth: USES_DEEP_MAX,
    };
    // Long chains end in circles or here, before they use up the stack.
    if path.len() > USES_DEEP_MAX {
        return Err(too_large);
    }
    seen.insert(id, VisitState::Open);
    path.push(id);
    let (mut rules, mut deep) = (*own, 0);
    for used in used {
        let (more, deeper) = visit(uses, *used, seen, path)?;
        rules += more;
        deep = deep.max(deeper + 1);
        if rules > RULES_MAX || deep > USES_DEEP_MAX {
            return Err(too_large);
        }
    }
    path.pop();
    seen.insert(id, VisitState::Done { rules, deep });
    Ok((rules, deep))
}
