//! The transitions, the bounds, and the stop of the console.

use super::*;

const STATES: [State; 5] = [
    State::Running,
    State::Cancelling,
    State::Done,
    State::Failed,
    State::Cancelled,
];

const NOW: AfsTime = AfsTime(1_800_000_000);

fn order(volume: u32) -> Order {
    Order {
        kind: Kind::Backup,
        name: format!("vol{volume}"),
        volume: VolumeId(volume),
        session: 1,
        started: NOW,
    }
}

#[test]
fn states_change_as_the_table_says() {
    let events = [
        Event::Cancel,
        Event::Ended(Ending::Well),
        Event::Ended(Ending::Failed),
        Event::Ended(Ending::Stopped),
    ];
    let table = STATES.map(|state| events.map(|event| state.after(event)));
    let ends = [State::Done, State::Failed, State::Cancelled];
    for (row, state) in table.iter().zip(STATES) {
        match state.is_ended() {
            false => {
                assert_eq!(row[0], State::Cancelling, "{state:?}");
                assert_eq!(row[1..], ends, "{state:?}");
            }
            true => assert_eq!(row, &[state; 4]),
        }
    }
    assert_eq!(
        STATES.map(State::is_ended),
        [false, false, true, true, true]
    );
}

#[test]
fn a_cancelled_operation_ends_when_its_task_does() {
    let operations = Operations::default();
    let begun = operations.begin(order(7)).expect("begun");
    let state = || operations.get(begun.id).map(|view| view.state);
    assert!(!begun.stop.is_asked());
    operations.cancel(begun.id).expect("known");
    assert!(begun.stop.is_asked());
    assert_eq!(state(), Some(State::Cancelling));
    assert!(operations.of_volume(VolumeId(7)).is_some());
    operations.ended(begun.id, Ending::Stopped, "back".to_owned(), NOW);
    assert_eq!(state(), Some(State::Cancelled));
    assert!(operations.of_volume(VolumeId(7)).is_none());
    // A second end, or a late request, changes nothing.
    operations.ended(begun.id, Ending::Failed, "again".to_owned(), NOW);
    operations.cancel(begun.id).expect("known");
    let view = operations.get(begun.id).expect("kept");
    assert_eq!(
        (view.state, view.sentence.as_str()),
        (State::Cancelled, "back")
    );
    assert!(operations.cancel(99).is_err());
}

#[test]
fn a_volume_has_one_operation_at_a_time() {
    let operations = Operations::default();
    let first = operations.begin(order(7)).expect("begun");
    let refused = operations.begin(order(7)).expect_err("refused");
    assert!(refused.contains("works on volume vol7"), "{refused}");
    assert!(operations.begin(order(8)).is_ok());
    operations.ended(first.id, Ending::Well, String::new(), NOW);
    assert!(operations.begin(order(7)).is_ok());
}

#[test]
fn running_and_ended_operations_are_bounded() {
    let operations = Operations::default();
    let mut ids = Vec::new();
    for volume in 0..RUNNING_MAX as u32 {
        ids.push(operations.begin(order(volume)).expect("room").id);
    }
    assert!(operations.begin(order(1000)).is_err());
    for id in ids.drain(1..) {
        operations.ended(id, Ending::Well, String::new(), NOW);
    }
    for volume in 0..ENDED_MAX as u32 * 2 {
        let id = operations.begin(order(2000 + volume)).expect("room").id;
        operations.ended(id, Ending::Failed, "why".to_owned(), NOW);
    }
    let all = operations.all();
    assert_eq!(all.len(), ENDED_MAX + 1);
    // The running one is the oldest, and stays.
    assert_eq!(all.last().map(|view| view.id), Some(ids[0]));
    assert!(all.first().map(|view| view.id) > all.last().map(|view| view.id));
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_the_console_waits_for_the_tasks() {
    let operations = Arc::new(Operations::default());
    let quick = operations.begin(order(1)).expect("begun");
    let silent = operations.begin(order(2)).expect("begun");
    let task = operations.clone();
    tokio::spawn(async move {
        quick.stop.asked().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        task.ended(quick.id, Ending::Stopped, String::new(), NOW);
    });
    let begun = tokio::time::Instant::now();
    let left = operations.close(Duration::from_secs(10)).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
    assert_eq!(
        left.iter().map(|view| view.id).collect::<Vec<_>>(),
        [silent.id]
    );
    assert!(silent.stop.is_asked());
    assert!(operations.begin(order(3)).is_err(), "the console stops");
    operations.ended(silent.id, Ending::Stopped, String::new(), NOW);
    assert!(operations.close(Duration::from_secs(10)).await.is_empty());
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
}

#[test]
fn progress_does_not_go_back() {
    use cellar_admin::vos::job::{Step, Watcher as _};
    let progress = Progress::default();
    progress.set_whole(100);
    progress.sent(60);
    progress.sent(3);
    let _ready = progress.done(Step {
        name: "sent",
        at: None,
    });
    for n in 0..50 {
        progress.say(&n.to_string());
    }
    let view = progress.view();
    assert_eq!(
        (view.sent, view.whole, view.step.as_str()),
        (60, 100, "sent")
    );
    assert_eq!(view.messages.len(), 20);
    assert_eq!(view.messages.last().map(String::as_str), Some("49"));
}
