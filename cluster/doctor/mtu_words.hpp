#pragma once

namespace troupe::cluster::doctor {

/// Of two nodes between which only small packets pass: what is wrong, before the cause, and what to
/// do.
inline constexpr const char* large_ones_do_not = "small messages pass, but large ones do not: ";
inline constexpr const char* lower_the_mtu =
    "an MTU that is larger than the network carries does this: compare `ip link` on both, and try "
    "`ping -M do -s 1472`; lower the MTU of the interface";

}  // namespace troupe::cluster::doctor
