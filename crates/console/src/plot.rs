//! Plots as SVG. Colours and sizes of text come from the style sheet, by class.

use cellar_admin::table::short_size;
use cellar_admin::vos::SizeClass;
use maud::{Markup, html};

/// The share in percent from which a partition or device counts as full, as in `cellar status`.
pub(crate) const FULL_PERCENT: f64 = 90.0;

/// The used share in percent; 0 of nothing.
pub(crate) fn percent(used: u64, total: u64) -> f64 {
    match total {
        0 => 0.0,
        total => (used as f64 * 100.0 / total as f64).clamp(0.0, 100.0),
    }
}

/// The share of a quota in percent from which it counts as full, as in `cellar status`.
pub(crate) const QUOTA_FULL_PERCENT: f64 = 99.0;

/// A bar that shows a used share, with a mark at the share from which it counts as full.
pub(crate) fn fill(name: &str, used_percent: f64) -> Markup {
    fill_to(name, used_percent, FULL_PERCENT)
}

/// The same with another share from which it counts as full.
pub(crate) fn fill_to(name: &str, used_percent: f64, full_percent: f64) -> Markup {
    let class = match used_percent >= full_percent {
        true => "used full",
        false => "used",
    };
    let label = format!("{name}: {used_percent:.0} % used");
    html! {
        svg.fill viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=(label) {
            rect.room x="0" y="0" width="100" height="10" {}
            rect class=(class) x="0" y="0" width=(format!("{used_percent:.2}")) height="10" {}
            line.limit x1=(full_percent) y1="0" x2=(full_percent) y2="10" {}
        }
    }
}

/// The axis below a list of such bars.
pub(crate) fn fill_axis() -> Markup {
    html! {
        div.axis aria-hidden="true" {
            @for place in ["0 %", "25 %", "50 %", "75 %", "100 %"] { span { (place) } }
        }
    }
}

/// A bar that shows how much of a work is done.
pub(crate) fn progress(name: &str, done: u64, all: u64) -> Markup {
    let percent = percent(done, all);
    let label = format!("{name}: {percent:.0} %");
    html! {
        svg.fill viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=(label) {
            rect.room x="0" y="0" width="100" height="10" {}
            rect.used x="0" y="0" width=(format!("{percent:.2}")) height="10" {}
        }
    }
}

/// The drawing of a histogram, without the room of its axes, in units of the image.
const PLOT_WIDTH: f64 = 660.0;
const PLOT_HEIGHT: f64 = 200.0;
/// The room left of the drawing, above it, and below it.
const LEFT: f64 = 50.0;
const TOP: f64 = 24.0;
const BELOW: f64 = 50.0;
/// Labels of the horizontal axis that have room.
const LABELS_MAX: usize = 12;

/// Per cent of files and of bytes in each class of sizes.
pub(crate) fn histogram(sizes: &[SizeClass]) -> Markup {
    let shares = sizes
        .iter()
        .flat_map(|size| [size.files_percent, size.bytes_percent]);
    // The vertical axis ends at the next ten per cent.
    let top = ((shares.fold(0.0, f64::max) / 10.0).ceil() * 10.0).clamp(10.0, 100.0);
    let height = |percent: f64| percent / top * PLOT_HEIGHT;
    let step = PLOT_WIDTH / sizes.len().max(1) as f64;
    let bar = (step * 0.38).min(28.0);
    let every = sizes.len().div_ceil(LABELS_MAX).max(1);
    let number = |place: f64| format!("{place:.1}");
    let view = format!(
        "0 0 {} {}",
        LEFT + PLOT_WIDTH + 14.0,
        TOP + PLOT_HEIGHT + BELOW
    );
    let rect = |class: &'static str, x: f64, percent: f64, title: String| {
        html! {
            rect class=(class) x=(number(x)) y=(number(TOP + PLOT_HEIGHT - height(percent)))
                width=(number(bar)) height=(number(height(percent))) { title { (title) } }
        }
    };
    html! {
        figure.plot tabindex="0" role="group" aria-label="Plot of files by size" {
            svg viewBox=(view) role="img" aria-label="Per cent of files and of data in each class of sizes; the table has the numbers" {
                @for part in 0..=4 {
                    @let percent = top * f64::from(part) / 4.0;
                    @let y = TOP + PLOT_HEIGHT - height(percent);
                    line.grid x1=(LEFT) x2=(LEFT + PLOT_WIDTH) y1=(number(y)) y2=(number(y)) {}
                    text x=(LEFT - 6.0) y=(number(y + 4.0)) text-anchor="end" { (format!("{percent:.0} %")) }
                }
                @for (place, size) in sizes.iter().enumerate() {
                    @let middle = LEFT + step * (place as f64 + 0.5);
                    @let class = format!("{} to {}", short_size(size.above), short_size(size.to));
                    (rect("files", middle - bar, size.files_percent, format!("{class}: {:.2} % of the files", size.files_percent)))
                    (rect("bytes", middle, size.bytes_percent, format!("{class}: {:.2} % of the data", size.bytes_percent)))
                    @if place % every == 0 {
                        text x=(number(middle)) y=(number(TOP + PLOT_HEIGHT + 18.0)) text-anchor="middle" { (short_size(size.to).replace(".0 ", " ")) }
                    }
                }
                text x=(number(LEFT + PLOT_WIDTH / 2.0)) y=(number(TOP + PLOT_HEIGHT + 40.0)) text-anchor="middle" { "Size of a file, up to" }
                rect.files x=(LEFT) y="4" width="12" height="12" {}
                text x=(LEFT + 18.0) y="14" { "files" }
                rect.bytes x=(LEFT + 70.0) y="4" width="12" height="12" {}
                text x=(LEFT + 88.0) y="14" { "data" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_never_longer_than_their_room() {
        assert_eq!(percent(1, 0), 0.0);
        assert_eq!(percent(3, 2), 100.0);
        let text = fill("<a>", percent(9, 10)).into_string();
        assert!(text.contains("&lt;a&gt;: 90 % used"), "{text}");
        assert!(text.contains("used full"), "{text}");
    }
}
