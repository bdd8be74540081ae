# The core library of the C++ Actor Framework, as Debian has built it; with TROUPE_CAF_SOURCE built here
# from that source, with the flags and sanitizers of this build. Target: caf::core.

find_path(CAF_INCLUDE_DIR caf/config.hpp)
find_library(CAF_CORE_LIBRARY caf_core)
if(CAF_INCLUDE_DIR)
  file(STRINGS ${CAF_INCLUDE_DIR}/caf/config.hpp line REGEX "#define CAF_VERSION ")
  string(REGEX REPLACE ".*CAF_VERSION ([0-9]+).*" "\\1" number "${line}")  # 1706 is 0.17.6
  math(EXPR major "${number} / 10000")
  math(EXPR minor "${number} / 100 % 100")
  math(EXPR patch "${number} % 100")
  set(CAF_VERSION ${major}.${minor}.${patch})
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF
  REQUIRED_VARS CAF_CORE_LIBRARY CAF_INCLUDE_DIR VERSION_VAR CAF_VERSION HANDLE_VERSION_RANGE)

set(TROUPE_CAF_SOURCE "" CACHE PATH "CAF's unpacked source, if its core library is to be built along")

# The installed headers, which say how Debian configured CAF, and sources of the same version.
function(troupe_caf_from_source)
  file(STRINGS ${TROUPE_CAF_SOURCE}/libcaf_core/caf/config.hpp here REGEX "#define CAF_VERSION ")
  if(NOT here STREQUAL line)
    message(FATAL_ERROR "TROUPE_CAF_SOURCE (${TROUPE_CAF_SOURCE}) has '${here}', and the installed "
      "headers are of version ${CAF_VERSION}: remove the folder, and run ./dev sanitize again")
  endif()
  file(GLOB_RECURSE sources ${TROUPE_CAF_SOURCE}/libcaf_core/src/*.cpp)
  add_library(caf_core_here STATIC ${sources})
  target_compile_options(caf_core_here PRIVATE -w)  # not ours to warn about
  target_include_directories(caf_core_here SYSTEM PUBLIC ${CAF_INCLUDE_DIR})
  target_link_libraries(caf_core_here PUBLIC Threads::Threads)
endfunction()

if(CAF_FOUND AND NOT TARGET caf::core)
  add_library(caf::core INTERFACE IMPORTED)
  target_include_directories(caf::core SYSTEM INTERFACE ${CAF_INCLUDE_DIR})
  if(TROUPE_CAF_SOURCE)
    troupe_caf_from_source()
    target_link_libraries(caf::core INTERFACE caf_core_here)
  else()
    target_link_libraries(caf::core INTERFACE ${CAF_CORE_LIBRARY} Threads::Threads)
  endif()
endif()
