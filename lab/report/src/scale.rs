//! Axes: from figures to places, and the ticks between.

use crate::{Axis, figure};

/// Figures beyond this are treated as missing: their differences would overflow.
const LARGEST: f64 = 1e100;

/// True if a figure can be drawn.
pub(super) fn drawable(value: f64, log: bool) -> bool {
    value.is_finite() && value.abs() < LARGEST && (!log || value > 1.0 / LARGEST)
}

/// An axis with its ends and ticks.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    log: bool,
    /// Values and labels, rising.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Scale {
    /// For figures that are compared by their lengths: from zero, unless it is logarithmic.
    /// `values` are all that is to be on it.
    pub(super) fn of_lengths(axis: &Axis, values: impl Iterator<Item = f64>, ticks: usize) -> Self {
        let (low, high) = ends(values, axis.log);
        if axis.log {
            // The shortest bar is to be seen too.
            return Self::decades(axis, low / 2.0, high, ticks);
        }
        Self::even(axis, low.min(0.0), high.max(0.0), ticks, true)
    }

    /// For places: from the first to the last figure, ticks at the figures themselves if there are
    /// few.
    pub(super) fn of_places(
        axis: &Axis,
        values: impl Iterator<Item = f64>,
        ticks: usize,
        from_zero: bool,
    ) -> Self {
        let mut places: Vec<f64> = values.filter(|v| drawable(*v, axis.log)).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let (low, high) = ends(places.iter().copied(), axis.log);
        if !from_zero && (1..=12).contains(&places.len()) {
            let (low, high) = match (low < high, axis.log) {
                (true, _) => (low, high),
                (false, true) => (low / 2.0, high * 2.0),
                (false, false) => (low - 1.0, high + 1.0),
            };
            let label = |v: f64| match axis.log {
                true => figure::log_tick(v, &axis.unit),
                false => figure::tick(v, high, &axis.unit),
            };
            let ticks = places.iter().map(|v| (*v, label(*v))).collect();
            return Self { low, high, log: axis.log, ticks };
        }
        if axis.log {
            return Self::decades(axis, low, high, ticks);
        }
        let low = if from_zero { low.min(0.0) } else { low };
        Self::even(axis, low, high, ticks, from_zero)
    }

    /// Round ticks (1, 2, 5 times a power of ten); with `whole`, the ends are ticks too.
    fn even(axis: &Axis, low: f64, high: f64, ticks: usize, whole: bool) -> Self {
        // Ticks between two almost equal figures could not be distinguished.
        let least = (low.abs().max(high.abs()) * 1e-9).max(1.0 / LARGEST);
        let high = if high - low > least { high } else { low + (low.abs() / 2.0).max(1.0) };
        let step = nice_step((high - low) / ticks.max(1) as f64);
        // A hair of tolerance, or 0.3 would be more than three times 0.1.
        let (first, last) = ((low / step + 1e-9).floor(), (high / step + 1e-9).floor());
        let last = if whole && last * step < high - step * 1e-6 { last + 1.0 } else { last };
        let (low, high) = if whole { (first * step, last * step) } else { (low, high) };
        let mut all = Vec::new();
        let mut i = if whole { first } else { (low / step - 1e-9).ceil() };
        while i <= last && all.len() < 50 {
            let label = figure::tick(i * step, high.abs().max(low.abs()), &axis.unit);
            all.push((i * step, label));
            i += 1.0;
        }
        Self { low, high, log: false, ticks: all }
    }

    /// Powers of ten, with 2 and 5 between if there are few.
    fn decades(axis: &Axis, low: f64, high: f64, ticks: usize) -> Self {
        let (low, high) = (low.log10().floor(), high.log10().ceil());
        let high = if high > low { high } else { low + 1.0 };
        let every = ((high - low) / ticks.max(1) as f64).ceil().max(1.0);
        let between: &[f64] = match high - low {
            d if d <= 1.0 => &[1.0, 2.0, 5.0],
            d if d <= 2.0 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let mut all = Vec::new();
        let mut power = low;
        while power <= high && all.len() < 50 {
            for factor in between {
                let value = factor * 10_f64.powf(power);
                if value <= 10_f64.powf(high) * 1.000_001 {
                    all.push((value, figure::log_tick(value, &axis.unit)));
                }
            }
            power += every;
        }
        Self { low: 10_f64.powf(low), high: 10_f64.powf(high), log: true, ticks: all }
    }

    /// The place of a figure: 0 at the low end, 1 at the high end; what lies beyond is at the end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let place = match self.log {
            true => (value.max(self.low).ln() - self.low.ln()) / (self.high.ln() - self.low.ln()),
            false => (value - self.low) / (self.high - self.low),
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Where bars begin: at zero, or at the low end of a logarithmic axis.
    pub(super) fn base(&self) -> f64 {
        if self.log { 0.0 } else { self.at(0.0) }
    }
}

/// The smallest and the largest of the drawable figures; without any, 0 and 1 (logarithmic: 1 and
/// 10).
fn ends(values: impl Iterator<Item = f64>, log: bool) -> (f64, f64) {
    let (low, high) = values
        .filter(|v| drawable(*v, log))
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    match (low <= high, log) {
        (true, _) => (low, high),
        (false, true) => (1.0, 10.0),
        (false, false) => (0.0, 1.0),
    }
}

/// The smallest of 1, 2, 5 times a power of ten that is not much below `step`.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= step * 0.85);
    factor.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn axis(log: bool) -> Axis {
        Axis { title: "t".into(), unit: "IOPS".into(), log }
    }

    fn labels(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn length_axes_span_zero_to_tick() {
        let scale = Scale::of_lengths(&axis(false), [123_000.0, 347_000.0].into_iter(), 5);
        assert_eq!(labels(&scale), ["0", "100k", "200k", "300k", "400k"]);
        assert!(scale.at(0.0) == 0.0 && (scale.at(400_000.0) - 1.0).abs() < 1e-12);
        let exact = Scale::of_lengths(&axis(false), [0.3].into_iter(), 3);
        assert_eq!(labels(&exact), ["0", "0.1", "0.2", "0.3"]);
        let negative = Scale::of_lengths(&axis(false), [-5.0, 10.0].into_iter(), 3);
        assert_eq!(labels(&negative), ["-5", "0", "5", "10"]);
        assert!((negative.base() - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn logarithmic_axes_use_powers_of_ten() {
        let scale = Scale::of_lengths(&axis(true), [3.0, 40_000.0].into_iter(), 6);
        assert_eq!(labels(&scale), ["1", "10", "100", "1k", "10k", "100k"]);
        assert!((scale.at(1000.0) - 0.6).abs() < 1e-9 && scale.base() == 0.0);
    }

    #[test]
    fn few_places_keep_their_names() {
        let jobs = [1.0, 2.0, 4.0, 8.0, 16.0];
        for log in [false, true] {
            let scale = Scale::of_places(
                &Axis { unit: String::new(), ..axis(log) },
                jobs.into_iter(),
                6,
                false,
            );
            assert_eq!(labels(&scale), ["1", "2", "4", "8", "16"]);
            assert!(scale.at(1.0) == 0.0 && (scale.at(16.0) - 1.0).abs() < 1e-12);
        }
        let one = Scale::of_places(&axis(false), [7.0].into_iter(), 6, false);
        assert!((one.at(7.0) - 0.5).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn any_figures_have_an_axis(values in prop::collection::vec(any::<f64>(), 0..20), log in any::<bool>(), ticks in 0..12_usize) {
            let scales = [
                Scale::of_lengths(&axis(log), values.iter().copied(), ticks),
                Scale::of_places(&axis(log), values.iter().copied(), ticks, false),
                Scale::of_places(&axis(log), values.iter().copied(), ticks, true),
            ];
            for scale in scales {
                prop_assert!(scale.ticks.len() <= 160);
                prop_assert!(scale.ticks.iter().all(|(v, _)| (0.0..=1.0).contains(&scale.at(*v))));
                prop_assert!(scale.ticks.windows(2).all(|pair| pair[0].0 <= pair[1].0));
                prop_assert!(values.iter().all(|v| (0.0..=1.0).contains(&scale.at(*v))));
            }
        }
    }
}
