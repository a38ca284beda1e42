//! Looks at the cluster: each second whether it answers, every few seconds its members, alarms and
//! the certificates of this server.
//!
//! Each second's answer names the last transaction of the database. The answer is linearizable:
//! only a majority of members gives it. A copy with this transaction was current at the question.

use std::time::Duration;

use tokio::time::Instant;

use crate::certificates;
use crate::client::Client;
use crate::follow::Followed;
use crate::messages::RangeRequest;
use crate::status::{Figures, Place, Seen, alarm_name};

const PROBE_EVERY: Duration = Duration::from_secs(1);
const PROBE_PATIENCE: Duration = Duration::from_millis(1500);
/// Probes between two looks at the members.
const LOOK_EVERY: u32 = 5;
/// Entries of the log by which a member may be behind before it is reported.
const BEHIND_MAX: u64 = 5000;
/// The time to answer from which a member is reported.
const SLOW: Duration = Duration::from_millis(300);

/// Runs until it is dropped.
pub(crate) async fn run(followed: &Followed) {
    let (client, figures) = (&*followed.client, &*followed.figures);
    let mut round = 0_u32;
    loop {
        let asked = Instant::now();
        probe(followed).await;
        if round.is_multiple_of(LOOK_EVERY) {
            client.renew();
            look(client, figures).await;
        }
        round = round.wrapping_add(1);
        tokio::time::sleep_until(asked + PROBE_EVERY).await;
    }
}

/// Asks for the last transaction, and waits for it in the copy.
async fn probe(followed: &Followed) {
    let figures = &followed.figures;
    let request = RangeRequest {
        key: followed.keys.last(),
        keys_only: true,
        ..RangeRequest::default()
    };
    let asked = Instant::now();
    match followed.client.range(&request, PROBE_PATIENCE).await {
        Ok(answer) => {
            figures.answered();
            let last = answer.kvs.first().map_or(0, |row| row.mod_revision);
            if followed.reaches(last, PROBE_EVERY).await {
                figures.current_at(asked);
            }
        }
        Err(fault) => figures.silent(&fault.to_string()),
    }
}

/// Looks at members and alarms once, and logs changes.
pub(crate) async fn look(client: &Client, figures: &Figures) {
    let before = figures.seen();
    let mut seen = Seen::default();
    let mut index = 0;
    let mut indices = Vec::new();
    for (at, address) in client.urls().enumerate() {
        let mut place = Place {
            address: address.to_owned(),
            ..Place::default()
        };
        let asked = Instant::now();
        let answer = client.status(at, PROBE_PATIENCE).await;
        place.answered_in = asked.elapsed();
        indices.push(answer.as_ref().map_or(0, |status| status.raft_index));
        match answer {
            Ok(status) => {
                place.version = status.version;
                place.bytes = u64::try_from(status.db_size).unwrap_or_default();
                if status.leader != 0 {
                    seen.leader = status.leader;
                }
                index = index.max(status.raft_index);
            }
            Err(fault) => place.fault = Some(fault.to_string()),
        }
        seen.places.push(place);
    }
    for (place, known) in seen.places.iter_mut().zip(indices) {
        place.behind = if place.fault.is_none() {
            index - known
        } else {
            0
        };
    }
    match client.members(PROBE_PATIENCE).await {
        Ok(list) => seen.members = list.members,
        Err(_) => seen.members.clone_from(&before.members),
    }
    match client.alarms(PROBE_PATIENCE).await {
        Ok(answer) => {
            let alarms = answer.alarms.iter();
            seen.alarms = alarms.map(|alarm| (alarm.member, alarm.alarm)).collect();
        }
        Err(_) => seen.alarms.clone_from(&before.alarms),
    }
    seen.certificates = client.certificates();
    log_changes(&before, &seen);
    certificates::log_changes(&before.certificates, &seen.certificates);
    figures.see(seen);
}

fn log_changes(before: &Seen, now: &Seen) {
    for &(member, alarm) in now
        .alarms
        .iter()
        .filter(|alarm| !before.alarms.contains(alarm))
    {
        let alarm = alarm_name(alarm);
        tracing::error!(member = format!("{member:x}"), alarm, "etcd has an alarm");
    }
    for &(member, alarm) in before
        .alarms
        .iter()
        .filter(|alarm| !now.alarms.contains(alarm))
    {
        let alarm = alarm_name(alarm);
        tracing::info!(
            member = format!("{member:x}"),
            alarm,
            "etcd's alarm is over"
        );
    }
    if now.leader != before.leader && before.leader != 0 {
        tracing::info!(
            leader = format!("{:x}", now.leader),
            "etcd has another leader"
        );
    }
    for place in &now.places {
        let known = before
            .places
            .iter()
            .find(|known| known.address == place.address);
        let address = &place.address;
        let was_faulty = known.is_some_and(|known| known.fault.is_some());
        match &place.fault {
            Some(reason) if !was_faulty => {
                tracing::warn!(address, reason, "a member of etcd does not answer");
            }
            None if was_faulty => tracing::info!(address, "a member of etcd answers again"),
            _ => {}
        }
        let is_slow = |place: &Place| {
            place.fault.is_none() && (place.behind > BEHIND_MAX || place.answered_in > SLOW)
        };
        if is_slow(place) && !known.is_some_and(is_slow) {
            let (entries, answered_in) = (place.behind, place.answered_in);
            tracing::warn!(address, entries, ?answered_in, "a member of etcd is slow");
        }
    }
}
