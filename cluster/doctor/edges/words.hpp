#pragma once

// What a probe asks a listener over our link: the type of the one element of a request.

namespace troupe::cluster::doctor {

namespace words {

inline constexpr const char* echo = "doctor.echo";    ///< Answer.
inline constexpr const char* clock = "doctor.clock";  ///< Your time: [nanoseconds].
/// What is below our link, for whose address in UCX is [text]: [kind, address, token], or an empty
/// kind and why there is none.
inline constexpr const char* raw = "doctor.raw";

}  // namespace words

}  // namespace troupe::cluster::doctor
