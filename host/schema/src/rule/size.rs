//! Sizes of texts, lists and maps for the estimate of costs.

/// The smallest and the largest number of characters, items or entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct SizeRange {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl SizeRange {
    pub(super) const UNKNOWN: Self = Self {
        min: 0,
        max: u64::MAX,
    };

    pub(super) fn exactly(size: u64) -> Self {
        Self { min: size, max: size }
    }

    pub(super) fn add(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    pub(super) fn multiply(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    pub(super) fn join(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    /// The cost at the largest size.
    pub(super) fn cost(self, unit: f64) -> u64 {
        scale_cost(self.max, unit)
    }
}

/// Multiplies a cost, and rounds it up.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the estimate is made of floating-point numbers there, too; the conversion saturates"
)]
pub(super) fn scale_cost(cost: u64, factor: f64) -> u64 {
    (cost as f64 * factor).ceil() as u64
}

/// Sizes of the keys and values of a list or map that the expression makes.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntrySizes {
    pub(super) is_list: bool,
    pub(super) key: SizeRange,
    pub(super) value: SizeRange,
}

impl EntrySizes {
    pub(super) fn join(self, other: Self) -> Self {
        Self {
            is_list: self.is_list,
            key: self.key.join(other.key),
            value: self.value.join(other.value),
        }
    }
}
