//! Median, smallest and largest.

/// What several rounds gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// How much more this is: the difference of the medians, and the widest that both allow.
    pub fn above(self, other: Spread) -> Spread {
        Spread {
            median: self.median - other.median,
            min: self.min - other.max,
            max: self.max - other.min,
        }
    }

    /// The same in another unit, which may be one over this one.
    pub fn map(self, scale: fn(f64) -> f64) -> Spread {
        let [median, one, other] = [self.median, self.min, self.max].map(scale);
        Spread {
            median,
            min: one.min(other),
            max: one.max(other),
        }
    }

    /// The median, with the smallest and the largest.
    pub fn text(self, number: impl Fn(f64) -> String) -> String {
        let [median, min, max] = [self.median, self.min, self.max].map(number);
        format!("{median} ({min}..{max})")
    }

    /// `None` of nothing.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let half = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            (values[half - 1] + values[half]) / 2.0
        } else {
            values[half]
        };
        Some(Spread { median, min, max })
    }
}

pub fn one_decimal(value: f64) -> String {
    format!("{value:.1}")
}

pub fn two_decimals(value: f64) -> String {
    format!("{value:.2}")
}

#[test]
fn the_median_of_an_even_count_lies_between() {
    let spread = Spread::of([4.0, 1.0, f64::NAN, 2.0, 9.0]).expect("four numbers");
    assert_eq!(
        spread,
        Spread {
            median: 3.0,
            min: 1.0,
            max: 9.0
        }
    );
    assert_eq!(Spread::of([]), None);
}
