//! Registration modes.

use super::*;

/// fi_domain(3): "For library versions 1.5 and later, this is the default if no mr_mode bits are
/// set."
/// fi_domain(3): "Only scalable memory registration operations are requested or supported."
#[test]
fn mr_mode_is_scalable_by_default() {
    for hints in [
        Hints::new(),
        Hints::new().domain(|domain| domain.mr_mode(MrMode::empty())),
    ] {
        assert_eq!(best(hints).domain.mr_mode, MrMode::empty());
    }
    assert_eq!(
        best(Hints::new().domain(|domain| domain.mr_mode(MrMode::SCALABLE)))
            .domain
            .mr_mode,
        MrMode::empty()
    );
}

/// fi_domain(3): "Setting mr_mode to 0 indicates that FI_MR_BASIC or FI_MR_SCALABLE are requested
/// and supported."
#[test]
fn before_1_5_mr_mode_of_zero_asks_for_either_and_the_answer_has_a_name() {
    assert_eq!(best(old_api()).domain.mr_mode, MrMode::SCALABLE);
    assert_eq!(
        best(old_api().domain(|domain| domain.mr_mode(MrMode::UNSPEC)))
            .domain
            .mr_mode,
        MrMode::SCALABLE
    );
    assert_eq!(
        best(old_api().domain(|domain| domain.mr_mode(MrMode::SCALABLE)))
            .domain
            .mr_mode,
        MrMode::SCALABLE
    );
    assert_eq!(
        best(old_api().domain(|domain| domain.mr_mode(MrMode::BASIC)))
            .domain
            .mr_mode,
        MrMode::BASIC
    );
}

/// fi_domain(3): `FI_MR_UNSPEC`, mode value.
/// fi_domain(3): "The value FI_MR_UNSPEC may be used to indicate support for any registration
/// mode."
#[test]
fn mr_mode_unspec_is_met_by_what_is_offered() {
    assert_eq!(MrMode::UNSPEC.bits(), 0, "as in C");
    // Modes that a program supports exclude nothing and request nothing. For a program of 1.4, the
    // result names the mode to be used.
    for (hints, answered) in [
        (Hints::new as fn() -> Hints, MrMode::empty()),
        (old_api, MrMode::SCALABLE),
    ] {
        let unspecified = hints().domain(|domain| domain.mr_mode(MrMode::UNSPEC));
        let infos = all_answers(unspecified);
        assert_eq!(infos, all_answers(hints()));
        assert!(infos.iter().all(|info| info.domain.mr_mode == answered));
    }
    // A required mode is in force in addition.
    let local = Hints::new().domain(|domain| {
        let domain = domain.mr_mode(MrMode::UNSPEC);
        domain.required_mr_mode(MrMode::LOCAL)
    });
    assert_eq!(best(local).domain.mr_mode, MrMode::LOCAL);
}

/// fi_mr(3): "Unlike other mr_mode bits, if FI_MR_BASIC is set on input to fi_getinfo(), it will
/// not be cleared by the provider."
#[test]
fn mr_modes_not_needed_are_cleared_but_basic_stays() {
    let modern = MrMode::all() - MrMode::BASIC - MrMode::SCALABLE;
    assert_eq!(
        best(Hints::new().domain(|domain| domain.mr_mode(modern)))
            .domain
            .mr_mode,
        MrMode::empty()
    );
    let basic = best(Hints::new().domain(|domain| domain.mr_mode(MrMode::BASIC | MrMode::LOCAL)))
        .domain
        .mr_mode;
    assert_eq!(basic, MrMode::BASIC);
}

/// fi_mr(3): "FI_MR_BASIC must either be set alone, or in conjunction with FI_MR_LOCAL."
/// fi_domain(3) knows no exception: "This flag may not be used in conjunction with other mr_mode
/// bits." LOCAL is one (ruling 18).
/// fi_mr(3): "Other mr_mode bit pairings are invalid."
#[test]
fn mr_basic_stands_alone_or_with_local() {
    for fine in [MrMode::BASIC, MrMode::BASIC | MrMode::LOCAL] {
        answers(Hints::new().domain(|domain| domain.mr_mode(fine)));
        answers(Hints::new().domain(|domain| domain.required_mr_mode(fine)));
    }
    for other in MrMode::all() - MrMode::BASIC - MrMode::LOCAL {
        let message = refusal(
            Hints::new().domain(|domain| domain.mr_mode(MrMode::BASIC | other)),
            ErrorKind::InvalidArgument,
        );
        assert!(message.contains("hint domain.mr_mode"), "{message}");
    }
}

/// fi_domain(3): "This flag may not be used in conjunction with other mr_mode bits."
/// fi_domain(3): "This flag may not be used in conjunction with other mr_mode bits."
/// fi_domain(3): "Only scalable memory registration operations are requested or supported."
#[test]
fn mr_scalable_stands_alone() {
    for other in MrMode::all() - MrMode::SCALABLE {
        refusal(
            Hints::new().domain(|domain| domain.mr_mode(MrMode::SCALABLE | other)),
            ErrorKind::InvalidArgument,
        );
    }
}

/// fi_domain(3): "Defined for compatibility – library versions 1.4 and earlier."
/// fi_domain(3): "Defined for compatibility -- library versions 1.4 and earlier."
/// fi_domain(3): "Defined for compatibility -- library versions 1.4 and earlier."
/// fi_domain(3): "Defined for compatibility -- library versions 1.4 and earlier."
#[test]
fn before_1_5_there_are_no_other_mode_bits() {
    let message = refusal(
        old_api().domain(|domain| domain.mr_mode(MrMode::VIRT_ADDR)),
        ErrorKind::InvalidArgument,
    );
    assert!(message.contains("1.4"), "{message}");
}

/// fi_domain(3): "This mode is equivalent to the FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, and
/// FI_MR_PROV_KEY flags being set in later library versions."
#[test]
fn basic_in_force_is_three_modes() {
    let three = MrMode::VIRT_ADDR | MrMode::ALLOCATED | MrMode::PROV_KEY;
    assert_eq!(MrMode::BASIC.in_force(), three);
    assert_eq!(
        (MrMode::BASIC | MrMode::LOCAL).in_force(),
        three | MrMode::LOCAL
    );
    assert_eq!(MrMode::SCALABLE.in_force(), MrMode::empty());
    assert_eq!(MrMode::LOCAL.in_force(), MrMode::LOCAL);
}

/// fi_domain(3): "Applications that require the use of a specific registration mode should set the
/// domain attribute mr_mode to the necessary value when calling fi_getinfo."
/// fi_domain(3): "should set the domain attribute mr_mode to the necessary value when calling
#[test]
fn required_mr_modes_stay_and_must_agree_with_the_others() {
    let three = MrMode::VIRT_ADDR | MrMode::PROV_KEY | MrMode::LOCAL;
    let info = best(
        Hints::new().domain(|domain| domain.mr_mode(MrMode::COLLECTIVE).required_mr_mode(three)),
    );
    assert_eq!(info.domain.mr_mode, three);
    let both = Hints::new().domain(|domain| {
        domain
            .mr_mode(MrMode::BASIC)
            .required_mr_mode(MrMode::LOCAL)
    });
    assert_eq!(best(both).domain.mr_mode, MrMode::BASIC | MrMode::LOCAL);
    let clash = Hints::new().domain(|domain| {
        domain
            .mr_mode(MrMode::SCALABLE)
            .required_mr_mode(MrMode::VIRT_ADDR)
    });
    refusal(clash, ErrorKind::InvalidArgument);
}

/// fi_mr(3): "this is indicated by setting mr_mode to FI_MR_SCALABLE, with the fi_info mode bit
/// FI_LOCAL_MR set to 0"
/// fi_mr(3): "the FI_MR_LOCAL mr_mode bit replaces the FI_LOCAL_MR fi_info mode bit."
/// fi_mr(3): "When FI_MR_LOCAL is set, FI_LOCAL_MR is ignored."
/// fi_mr(3): `FI_LOCAL_MR`, mode bit of fi_info.
#[test]
fn the_old_local_bit_asks_nothing_and_grants_nothing() {
    let old = best(old_api().domain(|domain| domain.mr_mode(MrMode::SCALABLE)));
    assert_eq!(
        (old.domain.mr_mode, old.mode),
        (MrMode::SCALABLE, Mode::empty())
    );
    for mode in [Mode::empty(), Mode::LOCAL_MR] {
        let with = best(
            Hints::new()
                .mode(mode)
                .domain(|domain| domain.required_mr_mode(MrMode::LOCAL)),
        );
        assert_eq!(
            (with.domain.mr_mode, with.mode),
            (MrMode::LOCAL, Mode::empty())
        );
        let without = best(Hints::new().mode(mode));
        assert_eq!(
            (without.domain.mr_mode, without.mode),
            (MrMode::empty(), Mode::empty())
        );
    }
}
