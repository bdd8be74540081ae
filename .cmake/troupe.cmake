# The build rules that every folder shares: language level, warnings, sanitizers, ccache, mold.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_CXX_FLAGS_RELEASE "-O2")  # assertions stay on: a bug must not train on
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")

set(TROUPE_SANITIZE "" CACHE STRING "Sanitizers to build with, as for -fsanitize=")
if(TROUPE_SANITIZE)
  add_compile_options(-fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer)
  # CAF binds a reference to the arguments of an actor that has none. A use of what is not there is
  # seen by AddressSanitizer.
  add_compile_options(-fno-sanitize=null)
  add_link_options(-fsanitize=${TROUPE_SANITIZE})
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")  # faster to compile, and hardly slower to run
  set(TROUPE_TEST_SECONDS 1200)
else()
  set(TROUPE_TEST_SECONDS 300)
endif()

option(TROUPE_FUZZ "Let libFuzzer drive the fuzz targets; needs clang" OFF)
if(TROUPE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link -fno-sanitize-recover=all)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
endif()

# Without collecting garbage between functions the compiler takes a tenth less time and half as much
# memory again.
cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR memory_mib_per_core "${memory_mib} / ${cores}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND memory_mib_per_core GREATER_EQUAL 6144)
  string(APPEND CMAKE_CXX_FLAGS " --param=ggc-min-expand=1000 --param=ggc-min-heapsize=4194304")
endif()

find_program(TROUPE_CCACHE ccache)
if(TROUPE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TROUPE_CCACHE})
endif()
find_program(TROUPE_MOLD mold)
if(TROUPE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/troupe_program.cmake)

# What whoever uses a library gets along; the warnings are ours alone.
add_library(troupe_usage INTERFACE)
target_compile_features(troupe_usage INTERFACE cxx_std_20)
target_include_directories(troupe_usage INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/troupe>)
add_library(troupe_options INTERFACE)
target_link_libraries(troupe_options INTERFACE troupe_usage)
target_compile_options(troupe_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror)
if(TROUPE_SANITIZE)
  # What it knows of values is lost in the checks that are put between.
  target_compile_options(troupe_options INTERFACE -Wno-maybe-uninitialized)
endif()

# troupe_library(NAME SOURCES...): one folder, one static library.
function(troupe_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC troupe_usage tl::expected
    PRIVATE $<BUILD_INTERFACE:troupe_options>)
endfunction()

# troupe_runs_seldom(): for a folder whose code runs a few times a step or a run: it computes
# nothing, and is compiled in three quarters of the time. troupe_target_runs_seldom(TARGET): the same for one.
macro(troupe_runs_seldom)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    add_compile_options(-O1)
  endif()
endmacro()

function(troupe_target_runs_seldom target)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# Adds tests/seeded_draws.cpp to a test program that draws tensors.
function(troupe_seed_draws name)
  if(NOT TARGET test_seeded_draws)
    add_library(test_seeded_draws OBJECT ${PROJECT_SOURCE_DIR}/tests/seeded_draws.cpp)
    target_link_libraries(test_seeded_draws PRIVATE troupe_options torch::torch Catch2::Catch2)
  endif()
  target_sources(${name} PRIVATE $<TARGET_OBJECTS:test_seeded_draws>)
endfunction()

# How tests are compiled: what they test is optimised; themselves they run once.
function(troupe_test_options name)
  target_link_libraries(${name} PRIVATE troupe_options)
  target_include_directories(${name} BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tests/macros)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE -O1)
  elseif(TROUPE_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  endif()
endfunction()

# troupe_links_torch(OUT LIBRARIES...): whether any of them brings LibTorch along.
function(troupe_links_torch out)
  set(${out} FALSE PARENT_SCOPE)
  set(left ${ARGN})
  set(seen "")
  while(left)
    list(POP_FRONT left library)
    if(library STREQUAL "torch::torch")
      set(${out} TRUE PARENT_SCOPE)
      return()
    elseif(TARGET ${library} AND NOT library IN_LIST seen)
      list(APPEND seen ${library})
      get_target_property(linked ${library} INTERFACE_LINK_LIBRARIES)
      if(linked)
        list(APPEND left ${linked})
      endif()
    endif()
  endwhile()
endfunction()

# troupe_precompiled_headers(NAME [-O0]): a test program with LibTorch takes the headers that most of them
# include from tests/precompiled.hpp, which is parsed once for all that are compiled in one way. Builds of
# single sources have none, so that no source leans on it.
function(troupe_precompiled_headers name)
  set(headers test_headers${ARGN})
  if(NOT TARGET ${headers})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${headers}.cpp CONTENT "int main() {}\n")
    add_executable(${headers} ${PROJECT_BINARY_DIR}/${headers}.cpp)
    target_link_libraries(${headers} PRIVATE torch::torch caf::core Catch2::Catch2)
    troupe_test_options(${headers})
    target_compile_options(${headers} PRIVATE ${ARGN})
    target_precompile_headers(${headers} PRIVATE ${PROJECT_SOURCE_DIR}/tests/precompiled.hpp)
  endif()
  target_precompile_headers(${name} REUSE_FROM ${headers})
endfunction()

# troupe_source_tests(NAME SOURCES... PROPERTIES ...): a ctest test for each source with test cases, named
# after it, which runs them all in one process: tests/test_main.cpp gives each case its source's tag.
function(troupe_source_tests name)
  cmake_parse_arguments(TEST "" "" "PROPERTIES" ${ARGN})
  foreach(source ${TEST_UNPARSED_ARGUMENTS})
    file(STRINGS ${source} cases REGEX "^(TEMPLATE_)?TEST_CASE" LIMIT_COUNT 1)
    file(STRINGS ${source} skips REGEX "[^A-Z_]SKIP[(]" LIMIT_COUNT 1)
    if(skips)
      message(FATAL_ERROR "${name}: ${source} skips cases, which would count as passed: list it behind ALONE")
    endif()
    if(cases)
      get_filename_component(source ${source} NAME_WE)
      add_test(NAME "${name}: ${source}" COMMAND ${name} "[#${source}]")
      set_tests_properties("${name}: ${source}" PROPERTIES ${TEST_PROPERTIES})
    endif()
  endforeach()
endfunction()

# troupe_test(NAME SOURCES... LINK LIBRARIES... LABELS LABELS...): one Catch2 program, each case a
# ctest test. With TOGETHER the cases of a source are one, in one process: loading LibTorch takes longer
# than most cases that need it. Sources that follow ALONE keep a process for each case: those which
# change what a process has once, or start others, and those which skip cases, which would count as
# passed beside others. Tests that start processes run one at a time, and first, since they take longest;
# each counts as two, so that of three at a time only one more runs beside those which hold others to a time. With
# UNTIMED, those of them that are tagged [untimed] hold nobody to a time of less than many seconds, but that
# nothing is left two seconds after an end in order: they run last and beside others, so that no core waits
# for the end of the rest. With PROMPT, those tagged [prompt] have others answer within a third of a second, and
# run alone, before all else. PLAIN: no header of LibTorch's is put before
# its sources, for there an operator writes any vector, and fails for what cannot be written. Tests
# labelled `timed` hold clocks to less than a second and run alone. LOGIC: compiled without optimisation, which
# takes about half the time: they compute next to nothing, like those that start programs.
function(troupe_test name)
  cmake_parse_arguments(TEST "LOGIC;PROMPT;UNTIMED;PLAIN;TOGETHER" "" "ALONE;LINK;LABELS" ${ARGN})
  if(NOT TARGET test_main)
    set(tests ${PROJECT_SOURCE_DIR}/tests)
    add_library(test_main OBJECT ${tests}/assertion_thread.cpp ${tests}/test_main.cpp)
    target_link_libraries(test_main PRIVATE troupe_options Catch2::Catch2)
  endif()
  set(sources ${TEST_UNPARSED_ARGUMENTS} ${TEST_ALONE})
  add_executable(${name} ${sources} $<TARGET_OBJECTS:test_main>)
  target_link_libraries(${name} PRIVATE ${TEST_LINK} Catch2::Catch2)
  foreach(source ${sources})
    file(STRINGS ${source} draws REGEX "include (<ATen/ops/rand|\"tests/parity/(small_models|stage_company|nccl_company)[.]hpp)" LIMIT_COUNT 1)
    if(draws)
      troupe_seed_draws(${name})
      break()
    endif()
  endforeach()
  troupe_test_options(${name})
  troupe_links_torch(has_torch ${TEST_LINK})
  if("test_programs" IN_LIST TEST_LINK OR "chaos_trials" IN_LIST TEST_LINK OR
      ("multiprocess" IN_LIST TEST_LABELS AND NOT has_torch))
    set(TEST_LOGIC TRUE)  # it starts programs and reads what they say
  endif()
  set(options "")
  if(TEST_LOGIC AND CMAKE_BUILD_TYPE STREQUAL "Release")
    set(options -O0)
  endif()
  target_compile_options(${name} PRIVATE ${options})
  if(has_torch AND TROUPE_UNITY AND NOT TEST_PLAIN)
    troupe_precompiled_headers(${name} ${options})
  endif()
  if(NOT TEST_LABELS)
    set(TEST_LABELS unit)
  endif()
  set(order "")
  if("timed" IN_LIST TEST_LABELS)
    set(order RUN_SERIAL TRUE)
  elseif("multiprocess" IN_LIST TEST_LABELS OR "chaos" IN_LIST TEST_LABELS)
    set(order RESOURCE_LOCK processes COST 1000 PROCESSORS 2)
  endif()
  set(discovery TEST_PREFIX "${name}: " DISCOVERY_MODE PRE_TEST)
  set(properties TIMEOUT ${TROUPE_TEST_SECONDS} SKIP_RETURN_CODE 4 LABELS "${TEST_LABELS}")
  if(TEST_TOGETHER)
    troupe_source_tests(${name} ${TEST_UNPARSED_ARGUMENTS} PROPERTIES ${properties} ${order})
    if(TEST_ALONE)
      list(TRANSFORM TEST_ALONE REPLACE "^.*/|[.]cpp$" "")
      list(TRANSFORM TEST_ALONE REPLACE "^(.+)$" "[#\\1]")
      string(JOIN "," alone ${TEST_ALONE})
      catch_discover_tests(${name} TEST_SPEC "${alone}" ${discovery} PROPERTIES ${properties} ${order})
    endif()
  elseif(TEST_UNTIMED)
    catch_discover_tests(${name} TEST_SPEC "[untimed]" ${discovery}
      PROPERTIES ${properties} COST -1)
    catch_discover_tests(${name} TEST_SPEC "~[untimed]~[prompt]" ${discovery}
      PROPERTIES ${properties} ${order})
    if(TEST_PROMPT)
      catch_discover_tests(${name} TEST_SPEC "[prompt]" ${discovery}
        PROPERTIES ${properties} COST 2000 RUN_SERIAL TRUE)
    endif()
  else()
    catch_discover_tests(${name} ${discovery} PROPERTIES ${properties} ${order})
  endif()
endfunction()
