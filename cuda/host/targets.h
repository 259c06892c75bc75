// nv/target: statements that are chosen by the architecture, which is that of Hopper here.
#pragma once

#define NV_IS_HOST 0
#define NV_IS_DEVICE 1
#define NV_ANY_TARGET 1
#define NV_NO_TARGET 0
#define NV_PROVIDES_SM_35 1
#define NV_PROVIDES_SM_50 1
#define NV_PROVIDES_SM_52 1
#define NV_PROVIDES_SM_53 1
#define NV_PROVIDES_SM_60 1
#define NV_PROVIDES_SM_61 1
#define NV_PROVIDES_SM_70 1
#define NV_PROVIDES_SM_72 1
#define NV_PROVIDES_SM_75 1
#define NV_PROVIDES_SM_80 1
#define NV_PROVIDES_SM_86 1
#define NV_PROVIDES_SM_89 1
#define NV_PROVIDES_SM_90 1
#define NV_PROVIDES_SM_100 0
#define NV_PROVIDES_SM_120 0

#define CUHOST_OPENED(...) __VA_ARGS__
#define CUHOST_CHOSEN_1(yes, no) CUHOST_OPENED yes
#define CUHOST_CHOSEN_0(yes, no) CUHOST_OPENED no
#define CUHOST_CHOSEN_OF(condition) CUHOST_CHOSEN_##condition
#define CUHOST_CHOSEN(condition) CUHOST_CHOSEN_OF(condition)
#define CUHOST_FIRST_OF(no, ...) no
#define NV_IF_ELSE_TARGET(condition, yes, no) { CUHOST_CHOSEN(condition)(yes, no) }
#define NV_IF_TARGET(condition, yes, ...) { CUHOST_CHOSEN(condition)(yes, CUHOST_FIRST_OF(__VA_ARGS__ __VA_OPT__(,) ())) }
